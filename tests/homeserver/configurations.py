"""Configurations of homeservers as people spell them, drawn by Hypothesis; and real releases' answers.

`configurations` draws what is given to Synapse and to us. `read_answers` reads what releases said of 500 of
them (tests/interop/test_configurations.py records it).
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from hypothesis import strategies as st

RELEASES: Final = ("1.21.2", "1.50.2", "1.66.0", "1.85.2", "1.100.0", "1.157.1", "1.163.2")
"""Those that were asked; 1.21.2 is the first that answers for all main processes."""
SEED: Final = 20261129
COUNT: Final = 500
ANSWERS: Final = Path(__file__).parent / "configurations.json.gz"

APPS: Final = ("federation_sender", "pusher", "appservice", "user_dir", "media_repository", "client_reader")
NAMES: Final = ("w1", "w2", "w3")


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Files by their names, each a YAML value; `shared` are given to each process in this order (a folder as
    such), and `own` is the file of a process over them; empty for a main process without one.

    `order` is how they are given to us: the same files, the shared ones in the same order.
    """

    files: dict[str, Any]
    shared: list[str]
    own: list[str]
    order: list[str]

    def write(self, folder: Path, base: dict[str, Any]) -> None:
        """Write the files below a folder; `base` is added to the first."""
        for number, (name, content) in enumerate(self.files.items()):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump({**base, **content} if number == 0 else content, sort_keys=False))

    def paths(self, own: str, folder: Path) -> list[str]:
        """The paths that Synapse is given for the process with this file of its own."""
        return [str(folder / name) for name in [*self.shared, *filter(None, [own])]]


# -- values ----------------------------------------------------------------------------------------------

ABSENT: Final = object()
YES: Final = st.sampled_from((True, True, "true", "false", 1))
NO: Final = st.sampled_from((False, False, False, 0, None, ""))
name = st.sampled_from((*NAMES, *NAMES, "master"))
names = st.one_of(
    st.lists(name, max_size=3, unique=True),
    st.none(),
    st.just([]),
    name,
    st.sampled_from((["w9"], ["main"], 5)),
)
one_name = st.one_of(name, st.none(), st.sampled_from(("w9", "main", "master")))


def rarely(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], *, one_in: int = 8) -> Any:
    """Mostly the usual."""
    return st.integers(0, one_in - 1).flatmap(lambda number: odd if number == 0 else usual)


def maybe(strategy: st.SearchStrategy[Any], *, one_in: int = 2) -> Any:
    """Every so often."""
    return st.integers(0, one_in - 1).flatmap(lambda number: strategy if number == 0 else st.just(ABSENT))


def settings(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping without those that are absent."""
    return st.fixed_dictionaries(dict(values)).map(
        lambda found: {key: value for key, value in found.items() if value is not ABSENT}
    )


redis = rarely(
    settings(
        enabled=maybe(rarely(YES, NO, one_in=4), one_in=1),
        host=maybe(st.sampled_from(("redis", "10.0.0.5"))),
        port=maybe(st.integers(1000, 9999)),
        password=maybe(st.just("pw"), one_in=3),
        username=maybe(st.sampled_from(("user", "")), one_in=8),
        path=maybe(st.just("/run/redis.sock"), one_in=8),
        dbid=maybe(st.integers(0, 3), one_in=6),
        use_tls=maybe(st.booleans(), one_in=6),
    ),
    st.sampled_from((None, "redis", [1], {}, {"enabled": True})),
    one_in=12,
)
entry = rarely(
    st.fixed_dictionaries({"host": st.sampled_from(("127.0.0.1", "w")), "port": st.integers(9000, 9009)}),
    st.sampled_from(
        (
            {"host": "w", "port": "9001"},
            {"host": "w"},
            {"path": "/run/w.sock"},
            {"host": "w", "port": 9001, "tls": True},
            {"host": "w", "port": 9001, "extra": 1},
            None,
            {"host": 5, "port": 9001},
            {"host": "w", "port": 9001, "path": "/run/w.sock"},
        )
    ),
    one_in=16,
)
whole_map = settings(
    main=rarely(entry, st.just(ABSENT), one_in=6),
    w1=maybe(entry, one_in=1),
    w2=rarely(entry, st.just(ABSENT), one_in=5),
    w3=maybe(entry),
)
instance_map = rarely(whole_map, st.sampled_from((None, {}, [], "x")), one_in=10)
writer_names = rarely(
    st.one_of(name, st.lists(name, min_size=1, max_size=1)),
    st.sampled_from(([], None, ["w1", "w2"], "w9", "main", 5)),
    one_in=8,
)
stream_writers = rarely(
    settings(
        events=maybe(st.one_of(writer_names, st.lists(name, min_size=1, max_size=3, unique=True))),
        **{key: maybe(writer_names, one_in=4) for key in ("typing", "to_device", "account_data", "receipts")},
        **{key: maybe(writer_names, one_in=8) for key in ("presence", "push_rules", "device_lists")},
        thread_subscriptions=maybe(writer_names, one_in=12),
        quarantined_media_changes=maybe(writer_names, one_in=12),
        unknown=maybe(name, one_in=24),
    ),
    st.sampled_from((None, {}, [], "events")),
    one_in=16,
)
http = st.fixed_dictionaries(
    {
        "type": st.just("http"),
        "port": st.integers(8000, 8009),
        "resources": st.lists(
            st.fixed_dictionaries(
                {
                    "names": st.lists(
                        st.sampled_from(("client", "federation", "replication", "media", "metrics"))
                    )
                }
            ),
            max_size=2,
        ),
    }
)
listener = rarely(
    st.one_of(http, st.just({"type": "metrics", "port": 9100})),
    st.sampled_from(
        (
            {"type": "replication", "port": 9092},
            {"type": "http", "port": "8008"},
            {"type": "http"},
            {"type": "http", "path": "/run/h.sock", "resources": [{"names": ["replication"]}]},
            {"type": "http", "port": 8008, "resources": [{"names": ["health"]}]},
            {"type": "http", "port": 8008, "resources": [{"names": ["nothing"]}]},
            {"type": "http", "port": 8008, "path": "/run/h.sock"},
            {"type": "metrics", "path": "/run/m.sock"},
            {"type": "other", "port": 1},
            {"type": "manhole", "port": 9000},
            "x",
        )
    ),
    one_in=10,
)
listeners = rarely(st.lists(listener, max_size=3), st.sampled_from((None, "x")), one_in=30)
old_switch = st.one_of(NO, NO, YES)

SHARED_KEYS: Final = {
    "redis": maybe(redis, one_in=1),
    "instance_map": rarely(instance_map, st.just(ABSENT), one_in=8),
    "stream_writers": maybe(stream_writers),
    "listeners": maybe(listeners),
    "send_federation": maybe(old_switch),
    "federation_sender_instances": maybe(names, one_in=3),
    "start_pushers": maybe(old_switch, one_in=3),
    "pusher_instances": maybe(names, one_in=4),
    "notify_appservices": maybe(old_switch, one_in=5),
    "notify_appservices_from_worker": maybe(one_name, one_in=5),
    "update_user_directory": maybe(old_switch, one_in=6),
    "update_user_directory_from_worker": maybe(one_name, one_in=6),
    "run_background_tasks_on": maybe(one_name, one_in=4),
    "worker_replication_secret": maybe(rarely(st.just("secret"), st.just(5), one_in=10)),
    "outbound_federation_restricted_to": maybe(st.lists(name, max_size=2, unique=True), one_in=16),
    "worker_replication_port": maybe(st.sampled_from((9092, None)), one_in=40),
}
shared_settings = settings(**SHARED_KEYS)
worker_app = rarely(
    st.just("synapse.app.generic_worker"), st.sampled_from([f"synapse.app.{one}" for one in APPS]), one_in=3
)
override = st.sampled_from(sorted(SHARED_KEYS)).flatmap(lambda key: settings(**{key: SHARED_KEYS[key]}))
old_worker_keys = settings(
    worker_replication_host=maybe(st.sampled_from(("127.0.0.1", None)), one_in=8),
    worker_replication_http_port=maybe(st.just(9093), one_in=8),
    worker_replication_http_tls=maybe(st.booleans(), one_in=20),
)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """The shared files (perhaps in a folder, with some that are no mapping), and those of processes."""
    pieces = draw(st.integers(1, 4))
    everything = draw(shared_settings)
    parts: list[dict[str, Any]] = [{} for _ in range(pieces)]
    for key, value in everything.items():
        parts[draw(st.integers(0, pieces - 1))][key] = value
    if draw(st.integers(0, 5)) == 0:  # a key once more
        parts[-1].update(draw(override))
    parts[0] = {"server_name": "example.org", **parts[0]}
    files: dict[str, Any] = {"homeserver.yaml": parts[0]}
    shared = ["homeserver.yaml"]
    if draw(st.booleans()):
        files.update({f"conf.d/{number}.yaml": part for number, part in enumerate(parts[1:])})
        if draw(st.booleans()):
            files["conf.d/5.yaml"] = draw(st.sampled_from((["a"], "text", None, 5)))
            files["conf.d/6.txt"] = {"redis": {"enabled": True, "host": "never.read"}}
        shared += ["conf.d"] if len(files) > 1 else []
    else:
        more = {f"{number}.yml": part for number, part in enumerate(parts[1:])}
        files |= more
        shared += more
    own: list[str] = []
    for number in range(draw(st.integers(0, 3))):
        file = f"workers/{number}.yaml"
        own.append(file)
        app, called = draw(worker_app), draw(rarely(st.just(NAMES[number]), st.just(ABSENT), one_in=6))
        named = {} if called is ABSENT else {"worker_name": called}
        listens = draw(settings(worker_listeners=maybe(listeners)))
        extra = draw(override) if draw(st.integers(0, 5)) == 0 else {}
        files[file] = {"worker_app": app, **named, **listens, **draw(old_worker_keys), **extra}
    if draw(st.integers(0, 3)) == 0:
        files["main.yaml"] = {"worker_app": "synapse.app.homeserver", **draw(override)}
        own.insert(0, "main.yaml")
    else:
        own.insert(0, "")
    order = [*shared]
    for file in filter(None, own):
        order.insert(draw(st.integers(0, len(order))), file)
    return Configuration(files=files, shared=shared, own=own, order=order)


# -- answers ---------------------------------------------------------------------------------------------


def write_answers(found: list[tuple[Configuration, dict[str, dict[str, Any]]]]) -> None:
    """Keep what each release (by its number) said of each process (by its own file)."""
    content = [{"configuration": msgspec.to_builtins(one), "answers": answers} for one, answers in found]
    text = "\n".join(json.dumps(one, separators=(",", ":")) for one in content)
    ANSWERS.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_answers() -> Iterator[tuple[Configuration, dict[str, dict[str, Any]]]]:
    """Each configuration with the answers, by release and by the own file of the process."""
    for line in gzip.decompress(ANSWERS.read_bytes()).splitlines():
        one = json.loads(line)
        yield msgspec.convert(one["configuration"], Configuration), one["answers"]
