"""Commands of workers by every way in, with every kind of key."""

from itertools import product
from typing import Any, Final, NamedTuple

from synrepl.base.access import Key, Right, access_of
from synrepl.base.rights import command_refusal
from synrepl.base.run_owners import MAX_RUNS, RunOwners
from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import FORWARDED, ClearUserSync, Replicate
from synrepl.wire.dialect import LEGACY, NEWEST
from synrepl.wire.grammar import CLIENT, SERVER, Command
from tests.http.builders import SiteCase


class Sample(NamedTuple):
    """A line, what it takes, and whom it speaks for; {} is that instance, or a run of it."""

    line: str
    right: Right = Right.READ
    stream: str | None = None
    """The stream that it concerns; empty: none, None: all."""
    names_instance: bool = False


SAMPLES: Final = (
    Sample("REPLICATE ", stream=""),
    Sample("USER_SYNC {} @a:hs PHONE start 1", stream="presence", names_instance=True),
    Sample("CLEAR_USER_SYNC {}", stream="presence", names_instance=True),
    Sample("FEDERATION_ACK {} 1", stream="federation", names_instance=True),
    Sample("REMOVE_PUSHER app key @a:hs", stream="pushers"),
    Sample('INVALIDATE_CACHE get_user_by_id ["@a:hs"]', Right.WRITE, "caches"),
    Sample("REMOTE_SERVER_UP example.org", stream="federation"),
    Sample('USER_IP @a:hs ["token","127.0.0.1","curl",null,1]'),
    Sample('LOCK_RELEASED ["{}","purge","!r:hs"]', names_instance=True),
)

KEYS: Final = (
    Key(name="all", secret="all"),
    Key(name="reader", secret="reader", rights=frozenset({Right.READ})),
    Key(name="writer", secret="writer", rights=frozenset({Right.WRITE})),
    *(
        Key(name=f"of-{stream}", secret=f"of-{stream}", streams=frozenset({stream}))
        for stream in ("presence", "federation", "pushers", "caches")
    ),
    Key(name="one", secret="one", instances=frozenset({"w1"})),
    Key(name="two", secret="two", instances=frozenset({"w2", "w3"})),
)


def may(key: Key, sample: Sample, instance: str) -> bool:
    """Whether a peer with this key may send it, as the manual has it."""
    sees = key.streams is None or sample.stream == "" or sample.stream in key.streams
    speaks = key.instances is None or not sample.names_instance or instance in key.instances
    return sample.right in key.rights and sees and speaks


class CommandRightsTests(SiteCase):
    """Each sample for each of two instances; runs are named by the process that they are of, first."""

    def samples(self) -> list[tuple[Key, Sample, str, bytes]]:
        """All cases, each with the line."""
        return [
            (key, sample, instance, sample.line.format(instance).encode())
            for sample, instance, key in product(SAMPLES, ("w1", "w2"), KEYS)
        ]

    def test_the_samples_are_all_commands(self) -> None:
        """A new command gets its row."""
        names = {sample.line.split(" ")[0] for sample in SAMPLES}
        self.assertEqual({Replicate.NAME, *(command.NAME for command in FORWARDED)}, names)

    def test_on_a_line(self) -> None:
        """A follower's certificate may have a key."""
        self.wait(self.log.append("federation", "master", [b'[["k",{}]]']))
        followers = {key.name: self.publisher.attach(Unread(), access_of(key)) for key in KEYS}
        for key in KEYS[-2:]:
            for run in key.instances or ():
                followers[key.name].received([parsed(f"USER_SYNC {run} @a:hs None start 1".encode())])
        for key, sample, instance, line in self.samples():
            if sample.line.startswith("REPLICATE"):
                continue  # of a follower, it is asked for before anything else
            with self.subTest(key=key, line=line):
                is_allowed = True
                try:
                    followers[key.name].received([parsed(line)])
                except RemoteProtocolError:
                    is_allowed = False
                self.assertEqual(may(key, sample, instance), is_allowed)

    def dropped(self) -> float:
        """How many commands were dropped."""
        names = [sample.line.split(" ")[0] for sample in SAMPLES]
        return float(sum(self.metrics.commands_dropped.labels(name).value for name in names))


class Unread:
    """A connection whose peer is sent nothing that matters."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


def parsed(line: bytes) -> Command:
    """The command of a line, as the release that has it wrote it."""
    dialect = LEGACY if line.startswith((b"REMOVE_PUSHER", b"INVALIDATE_CACHE")) else NEWEST
    return codec_of(dialect, ours=SERVER, theirs=CLIENT).parse(line)


def test_who_ends_a_run_has_not_named_it() -> None:
    """After a restart of the daemon anybody could end the runs of others, and take them."""
    one, two = (
        access_of(Key(name=name, secret=name, rights=frozenset({Right.READ}), instances=frozenset({name})))
        for name in ("one", "two")
    )
    runs, named = RunOwners(), parsed(b"USER_SYNC abcde @a:hs None start 1")

    assert "may not speak for the run abcde" in command_refusal(two, ClearUserSync(instance_id="abcde"), runs)
    assert command_refusal(one, named, runs) == ""
    assert command_refusal(one, ClearUserSync(instance_id="abcde"), runs) == ""
    assert "may not" in command_refusal(two, ClearUserSync(instance_id="abcde"), runs)


def test_a_run_belongs_to_who_named_it_first() -> None:
    """Of each key the last ones are remembered: no key makes the daemon forget those of another."""
    runs = RunOwners()
    assert runs.claim("abcde", "one")
    assert not runs.claim("abcde", "two")
    assert runs.is_of("abcde", "one")
    assert not runs.is_of("abcde", "two")
    assert not runs.is_of("other", "one")
    for number in range(2 * MAX_RUNS):
        assert runs.claim(f"r{number}", "two")
    assert runs.claim("abcde", "one")
    assert runs.claim("r0", "one")
    assert not runs.claim(f"r{MAX_RUNS}", "one")
    assert not runs.claim("x" * 256, "one")
