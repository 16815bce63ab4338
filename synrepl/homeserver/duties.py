"""Which process does what, by what its own merged configuration says; as tables, by release.

Truth is Python's, as it is Synapse's: the text ``"false"`` switches a thing on.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from synrepl.homeserver.merging import MAIN, ProcessConfig, as_list, as_mapping
from synrepl.homeserver.streams import MAIN_PROCESS, WRITER_KEYS
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST, Release, Span, span

Judge = Callable[["Duty", ProcessConfig, Release], bool]


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """Something that one process or several do for all.

    `names` is the key with the names of those that do, which counts in the releases of `named`. Without it
    (and before it) `switch` keeps the main process from it, and `app` is the old `worker_app` that does it
    then. `takes_list`: `names` has a list, and an empty one means nobody; else it has one name, and nothing
    means the main process.
    """

    name: str
    names: str
    named: Span
    switch: str = ""
    app: str = ""
    takes_list: bool = False
    judge: Judge

    @property
    def is_of_one(self) -> bool:
        """Whether one process does it for all."""
        return self.judge is _by_name

    def has(self, config: ProcessConfig, release: Release = NEWEST.release) -> bool:
        """Whether this process does it."""
        return self.judge(self, config, release)

    def named_by(self, config: ProcessConfig) -> list[str]:
        """The names at `names`; none if the key does not count."""
        value = config.get(self.names)
        return [value] if isinstance(value, str) else [one for one in as_list(value) if isinstance(one, str)]

    def shares_with(self, config: ProcessConfig, release: Release = NEWEST.release) -> tuple[str, ...]:
        """The names among which this process shares it, by its own files; none without a list of them."""
        value = config.get(self.names)
        if not self.takes_list or release not in self.named or not isinstance(value, list | str | dict):
            return ()
        return tuple(str(one) for one in value)


def _by_app(duty: Duty, config: ProcessConfig) -> bool:
    """The oldest form: the main process, or a worker of its own kind."""
    if not config.app:
        return not duty.switch or bool(config.get(duty.switch, True))
    return bool(duty.app) and config.app == duty.app


def _by_list(duty: Duty, config: ProcessConfig, release: Release) -> bool:
    if release not in duty.named:
        return _by_app(duty, config)
    names = config.get(duty.names)
    if names is not None:
        # A text is looked through, as by Synapse.
        return isinstance(names, list | str | dict) and config.name in names
    if config.app == duty.app:
        return True
    return config.name == MAIN and bool(config.get(duty.switch, True))


def _by_name(duty: Duty, config: ProcessConfig, release: Release) -> bool:
    if release not in duty.named:
        return _by_app(duty, config)
    said = [one for one in (named_here(duty, config), switched_here(duty, config)) if one is not None]
    return any(said) if said else config.worker_name is None


def named_here(duty: Duty, config: ProcessConfig) -> bool | None:
    """Whether `names` names this process; None without the key."""
    if duty.names not in config:
        return None
    name = config.get(duty.names) or MAIN
    return (name == MAIN and config.worker_name is None) or bool(name == config.worker_name)


def switched_here(duty: Duty, config: ProcessConfig) -> bool | None:
    """Whether the old switch lets this process do it; None without the key."""
    if not duty.switch or duty.switch not in config:
        return None
    is_on = bool(config.get(duty.switch))
    return (config.worker_name is None and is_on) or (config.app == duty.app and not is_on)


def has_media(config: ProcessConfig) -> bool:
    """Whether this process loads the media repository."""
    media = BY_NAME["media"]
    return config.app == media.app or bool(config.get(media.switch, True))


def _media(duty: Duty, config: ProcessConfig, release: Release) -> bool:
    """What the media repository does by itself: a named process, or all that have the repository."""
    if name := config.get(duty.names):
        return bool(name == config.name)
    if config.app == duty.app:
        return True
    has_resource = any("media" in names for _, names in http_listeners(config))
    return bool(config.get(duty.switch, True)) and (config.is_main or has_resource)


DUTIES: Final = (
    Duty(
        name="federation",
        names="federation_sender_instances",
        named=span("1.29"),
        switch="send_federation",
        app="synapse.app.federation_sender",
        takes_list=True,
        judge=_by_list,
    ),
    Duty(
        name="pushers",
        names="pusher_instances",
        named=span("1.29"),
        switch="start_pushers",
        app="synapse.app.pusher",
        takes_list=True,
        judge=_by_list,
    ),
    Duty(
        name="appservices",
        names="notify_appservices_from_worker",
        named=span("1.59"),
        switch="notify_appservices",
        app="synapse.app.appservice",
        judge=_by_name,
    ),
    Duty(
        name="user_directory",
        names="update_user_directory_from_worker",
        named=span("1.59"),
        switch="update_user_directory",
        app="synapse.app.user_dir",
        judge=_by_name,
    ),
    Duty(name="background_tasks", names="run_background_tasks_on", named=span("1.22"), judge=_by_name),
    Duty(
        name="media",
        names="media_instance_running_background_jobs",
        named=span("1.16"),
        switch="enable_media_repo",
        app="synapse.app.media_repository",
        judge=_media,
    ),
)
"""In the order of the documentation."""

DOES: Final[Mapping[str, str]] = {
    "federation": "sends federation",
    "pushers": "pushes",
    "appservices": "sends to application services",
    "user_directory": "updates the user directory",
    "background_tasks": "runs background tasks",
    "media": "cares for media",
}
"""What a process with a duty does, in words."""

UNDONE: Final[Mapping[str, str]] = {
    "federation": "nothing is sent to other servers",
    "pushers": "nothing is pushed",
    "appservices": "nothing is sent to application services",
    "user_directory": "the user directory is not updated",
    "background_tasks": "no background tasks run",
    "media": "nobody cares for media",
}
"""What is so while no process has a duty, in words."""

BY_NAME: Final[Mapping[str, Duty]] = {one.name: one for one in DUTIES}


def http_listeners(config: ProcessConfig) -> list[tuple[Mapping[str, Any], set[str]]]:
    """The listeners of a process for HTTP, each with the names of its resources."""
    found = []
    for listener in config.list("listeners" if config.is_main else "worker_listeners"):
        resources = [as_mapping(one) for one in as_list(as_mapping(listener).get("resources"))]
        names = {name for one in resources for name in as_list(one.get("names")) if isinstance(name, str)}
        if as_mapping(listener).get("type") == "http":
            found.append((as_mapping(listener), names))
    return found


# -- writers of streams --------------------------------------------------------------------------------------


class WriterKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of `stream_writers`: the releases that know it, that refuse several names, that refuse none, and
    that refuse a name which `instance_map` lacks."""

    known: Span
    one: Span | None = None
    some: Span | None = None
    mapped: Span


def _key(since: str, *, one: tuple[str, str] | None = None, some: str = "", mapped: str = "") -> WriterKey:
    return WriterKey(
        known=span(since),
        one=None if one is None else span(*one),
        some=span(some) if some else None,
        mapped=span(mapped or since),
    )


STREAM_WRITERS: Final[Mapping[str, WriterKey]] = {
    "events": _key("1.14", some="1.29"),
    "typing": _key("1.18", one=("1.47", "")),
    "to_device": _key("1.26", one=("1.26", "")),
    "account_data": _key("1.26", one=("1.26", "")),
    "receipts": _key("1.26", one=("1.26", "1.96"), some="1.96"),
    "presence": _key("1.33", one=("1.33", "")),
    "push_rules": _key("1.105", one=("1.105", "")),
    "device_lists": _key("1.135", some="1.135", mapped="1.159"),
    "thread_subscriptions": _key("1.135", some="1.159", mapped="1.159"),
    "quarantined_media_changes": _key("1.152", some="1.159", mapped="1.159"),
}


def stream_writers(config: ProcessConfig) -> dict[str, tuple[str, ...]]:
    """The configured writers by the key of `stream_writers`; a key that is not there has the main process."""
    return {str(key): tuple(writer_names(names)) for key, names in config.mapping("stream_writers").items()}


def writer_names(value: Any) -> list[str]:
    """The names at a key of `stream_writers`: one, or a list."""
    listed: Iterable[Any] = [value] if isinstance(value, str) else as_list(value)
    # Of another type are slips of YAML, as a name of digits.
    return [one if isinstance(one, str) else str(one) for one in listed if isinstance(one, str | int | float)]


def writes(name: str, writers: Mapping[str, tuple[str, ...]], release: Release = NEWEST.release) -> list[str]:
    """The streams that this process writes, by their names on the wire, without `caches`, which all write."""
    found = []
    for stream in StreamTable.default():
        if release not in stream.span:
            continue
        key = WRITER_KEYS.get(stream.name)
        if key is None:
            is_writer = name == MAIN and stream.name in MAIN_PROCESS
        else:
            is_known = key in STREAM_WRITERS and release in STREAM_WRITERS[key].known
            is_writer = name in (writers.get(key, (MAIN,)) if is_known else (MAIN,))
        if is_writer:
            found.append(stream.name)
    return sorted(found)
