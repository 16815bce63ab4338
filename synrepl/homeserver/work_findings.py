"""Finds work that no process does, work that several do, and processes without any; without I/O."""

from collections.abc import Collection, Iterator
from typing import Final

from synrepl.homeserver.configuration import Homeserver, Process
from synrepl.homeserver.duties import BY_NAME, DOES, DUTIES, STREAM_WRITERS, UNDONE, Duty
from synrepl.homeserver.findings import RESTART_ALL, RESTART_ONE, Finding
from synrepl.homeserver.merging import MAIN
from synrepl.homeserver.refusals import refused_by
from synrepl.html.humanize import several
from synrepl.wire.dialect import NEWEST, Release, release_text, span
from synrepl.wire.text import printable

MEANT: Final = {
    ("federation_sender", "fed_sender", "fedsender"): "federation",
    ("pusher",): "pushers",
    ("appservice",): "appservices",
    ("user_dir",): "user_directory",
    ("background",): "background_tasks",
    ("typing",): "typing",
    ("to_device",): "to_device",
    ("account_data",): "account_data",
    ("receipts",): "receipts",
    ("presence",): "presence",
    ("push_rules",): "push_rules",
    ("device_lists",): "device_lists",
    ("event_persister", "events_persister", "_events", "events_", "event_writer"): "events",
}
"""Parts of a worker's name, and the duty, or the key of `stream_writers`, that it is named for."""


SERVED_BY_WRITERS: Final = ("typing", "receipts", "to_device", "push_rules")
"""Keys of `stream_writers` of which only the writers take the requests of clients: others fail with 500."""


def find_in_work(homeserver: Homeserver) -> Iterator[Finding]:
    """Find what is wrong with who does what."""
    yield from _not_served(homeserver)
    yield from _done_twice(homeserver)
    yield from _shared_by_nobody(homeserver)
    yield from _shared_by_letters(homeserver)
    yield from _shared_otherwise(homeserver)
    yield from _media_not_served(homeserver)
    yield from _without_port(homeserver, is_working=True)


def _needs_main_port(process: Process) -> bool:
    """Whether it has work for which it asks the main process. What only sends over TCP may do without."""
    return bool(process.serves or (process.has_redis and (process.duties or process.writes)))


def _without_port(homeserver: Homeserver, *, is_working: bool) -> Iterator[Finding]:
    """Yield the workers that have no port of the main process, by whether they need it."""
    main = homeserver.process(MAIN)
    ports = [one for one in (main.listens if main else None) or () if isinstance(one, int)]
    for process in _given(homeserver):
        if process.lacks_main_port and _needs_main_port(process) == is_working:
            yield Finding(
                kind="no_main_port",
                process=process.name,
                why=f"{process.file} has no `worker_replication_http_port`: {printable(process.name)} cannot"
                " reach the main process, and requests that need it fail",
                remedy=f"set `worker_replication_http_port: {ports[0] if ports else 'PORT'}`, the port of the"
                f" main process' listener with the resource replication, in {process.file}"
                " (worker_replication_port is of another protocol)",
                cost=RESTART_ONE,
            )


def _not_served(homeserver: Homeserver) -> Iterator[Finding]:
    """Writers of what clients ask for, none of which has a listener for clients."""
    by_names: dict[tuple[str, ...], list[str]] = {}
    for key in SERVED_BY_WRITERS:
        if names := homeserver.writers.get(key):
            by_names.setdefault(names, []).append(key)
    for names, keys in by_names.items():
        serves = [one.serves if one is not None else None for one in map(homeserver.process, names)]
        if any(one is None or "client" in one for one in serves):
            continue
        files = [one.file for one in map(homeserver.process, names) if one is not None]
        has = "has" if len(names) == 1 else "have"
        yield Finding(
            kind="writer_not_served",
            process=names[0] if len(names) == 1 else "",
            why=f"{several([printable(one) for one in names])} alone can take what clients send of"
            f" {several(keys)}, and {has} no listener with the resource client: wherever these requests go,"
            " they fail",
            remedy=f"add a listener of type http with the resource client to {several(files)}, and have the"
            " proxy send these requests there (https://element-hq.github.io/synapse/latest/workers.html)",
            cost=RESTART_ONE,
        )


def notes_on_work(homeserver: Homeserver) -> Iterator[Finding]:
    """Yield what is unusual and may be intended; nothing of a part of the files."""
    if not homeserver.server_name:
        return
    yield from _without_port(homeserver, is_working=False)
    for process in _idle(homeserver):
        if not homeserver.has_unknown_names and _meant(process.name) is None:
            yield Finding(
                kind="does_nothing",
                process=process.name,
                why="it does nothing: no key leaves it a duty or a stream, and it has no listener for"
                " clients, other servers or media",
                remedy="if its file was shortened, give the whole; else name it in the key of what it is for",
            )
    jobs = [one for one in _given(homeserver) if "media" in one.shares_not]
    if len(jobs) > 1:
        key = BY_NAME["media"].names
        yield Finding(
            kind="media_jobs_twice",
            why=f"{several([printable(one.name) for one in jobs])} have a media repository, and each runs its"
            " background jobs",
            remedy=f"set `{key}: {printable(jobs[-1].name)}` in the shared file",
        )
    if homeserver.has_workers and not any(one.has_media for one in _given(homeserver)):
        main = homeserver.process(MAIN)
        if main is not None and main.file:
            yield Finding(
                kind="media_not_served",
                why="no process that was given has the media repository: `enable_media_repo` is false",
                remedy="if no other program serves media, set `enable_media_repo: true` in the file of a"
                " process with the resource media",
            )


def _given(homeserver: Homeserver) -> list[Process]:
    return [one for one in homeserver.processes if one.file]


# -- done by several -----------------------------------------------------------------------------------------


def _done_twice(homeserver: Homeserver) -> Iterator[Finding]:
    """What one process does for all, and several do: the files of each leave it to that process."""
    for duty in (one for one in DUTIES if one.is_of_one):
        doing = [one for one in _given(homeserver) if duty.name in one.duties]
        is_named = (homeserver.release or NEWEST.release) in duty.named
        key = f"`{duty.names}: NAME`" if is_named else f"`{duty.switch}: false`"
        if is_named and all(_copies(one, duty) for one in doing):
            key = f"one of them in `{duty.names}`"
        yield from _twice(
            duty,
            doing,
            "one process does it for all",
            f"set {key} in the shared file"
            + (f", and remove `{duty.switch}` from all files" if is_named and duty.switch else ""),
        )


def _shared_by_nobody(homeserver: Homeserver) -> Iterator[Finding]:
    """What is shared by a list of names, and several do without one, or by one name: each does all of it.

    A list counts for the process whose files have it: one without does all, whoever else has a list.
    """
    for duty in (one for one in DUTIES if one.takes_list):
        doing = [one for one in _doing(homeserver, duty) if duty.name in one.shares_not or _copies(one, duty)]
        if any(_copies(one, duty) for one in doing):
            yield from _twice(
                duty,
                doing,
                "no list tells processes of one name apart",
                f"list all of them in `{duty.names}` in the shared file, and restart all of them at once",
            )
            continue
        sharing = [one for one in _doing(homeserver, duty) if one.shares_with.get(duty.name)] if doing else []
        names = dict.fromkeys(name for one in sharing for name in one.shares_with[duty.name])
        listed = ", ".join(map(printable, names or [one.name for one in doing]))
        has = "has" if len(doing) == 1 else "have"
        alone = f" ({several([printable(one.name) for one in doing])} {has} none)" if sharing else ""
        yield from _twice(
            duty,
            [*doing, *sharing],
            f"without `{duty.names}` a process does all of it{alone}"
            if sharing
            else f"without `{duty.names}` each does all of it",
            f"set `{duty.names}: [{listed}]` in the shared file, and restart all of them at once",
        )


def _doing(homeserver: Homeserver, duty: Duty) -> list[Process]:
    """Those that do it, as far as they start."""
    release = homeserver.release or NEWEST.release
    return [
        one
        for one in _given(homeserver)
        if duty.name in one.duties
        and not any(refusal.key == duty.switch for refusal in refused_by(one.refusals, release))
    ]


def _shared_by_letters(homeserver: Homeserver) -> Iterator[Finding]:
    """A text where a list of names is meant: Synapse shares the work among its letters."""
    given = {one.name for one in homeserver.processes}
    for duty in DUTIES:
        having = [one for one in _given(homeserver) if duty.name in one.as_text]
        texts = {"".join(one.shares_with[duty.name]): one for one in having}
        for text, process in texts.items():
            if set(text) <= given:
                continue
            yield Finding(
                kind="text_for_list",
                why=f"`{duty.names}` is the text {printable(text)}, and no list: Synapse takes each letter"
                f" for the name of a process, and {UNDONE[duty.name]} but by processes of such names",
                remedy=f"write `{duty.names}: [{printable(text)}]` in {process.as_text[duty.name]}",
                cost=RESTART_ALL,
            )


def _shared_otherwise(homeserver: Homeserver) -> Iterator[Finding]:
    """Lists of names that differ, or name a process whose own files leave it nothing. Their order counts."""
    for duty in (one for one in DUTIES if one.takes_list):
        sharing = [one for one in _doing(homeserver, duty) if one.shares_with.get(duty.name)]
        if not sharing or any(duty.name in one.as_text for one in sharing):
            continue
        lists = {one.shares_with[duty.name] for one in sharing}
        doing = {one.name for one in sharing}
        files = {one.name for one in _given(homeserver)}
        idle = sorted((files & {name for names in lists for name in names}) - doing)
        if len(lists) < 2 and not idle:
            continue
        told = [
            f"{printable(one.name)} has [{', '.join(map(printable, one.shares_with[duty.name]))}]"
            for one in sharing
        ]
        none = [f"{several([*map(printable, idle)])}, which is listed, has another"] if idle else []
        yield Finding(
            kind="different_lists",
            count=len(sharing) + len(idle),
            why=f"`{duty.names}` is not the same for all: {', '.join([*told, *none])}: each takes its share"
            " by the list in its own files, and some is done twice, or by nobody",
            remedy=f"set `{duty.names}` in the shared file alone, and restart all of them at once",
            cost=RESTART_ALL,
        )


def _copies(process: Process, duty: Duty) -> list[str]:
    """The files that have this duty, if several of one name do."""
    files = process.done_in.get(duty.name, ())
    return [*files] if len(files) > 1 else []


def _twice(duty: Duty, doing: list[Process], why: str, remedy: str) -> Iterator[Finding]:
    names = [
        f"{printable(one.name)} ({file})" if file else printable(one.name)
        for one in doing
        for file in _copies(one, duty) or [""]
    ]
    if len(names) < 2:
        return
    if len(names) > len(doing):
        remedy = f"give each worker a worker_name of its own, and {remedy}"
    yield Finding(
        kind="done_twice",
        count=len(names),
        why=f"each of {several(names)} {DOES[duty.name]}: it is done {len(names)} times, and {why}",
        remedy=remedy,
        cost=RESTART_ALL,
    )


# -- done by nobody ------------------------------------------------------------------------------------------


def _idle(homeserver: Homeserver) -> list[Process]:
    """Processes without work, whose listeners are known."""
    return [
        one
        for one in _given(homeserver)
        if one.name != MAIN
        and not (one.duties or one.writes)
        and one.serves is not None
        and one.serves <= {"replication", "metrics", "health"}
        and one.name not in homeserver.proxies
    ]


def _key(meant: str) -> str:
    return BY_NAME[meant].names if meant in BY_NAME else f"stream_writers.{meant}"


def _meant(name: str) -> str | None:
    spelled = name.lower().replace("-", "_")
    return next((what for parts, what in MEANT.items() if any(part in spelled for part in parts)), None)


def find_without_work(homeserver: Homeserver, missing: Collection[str]) -> Iterator[Finding]:
    """Find processes named for work that have none. Names that are `missing` may be theirs, misspelled."""
    idle: dict[str, list[str]] = {}
    for process in _idle(homeserver):
        meant = _meant(process.name)
        names = [*missing, process.name]
        if meant and not any(_key(meant) in key for name in names for key in homeserver.named.get(name, ())):
            idle.setdefault(meant, []).append(process.name)
    release = homeserver.release or NEWEST.release
    for meant, names in idle.items():
        does, them, have = ("do", "them", "they have") if len(names) > 1 else ("does", "it", "it has")
        what = DOES.get(meant, f"writes the stream {meant}")
        yield Finding(
            kind="does_nothing",
            process=names[0] if len(names) == 1 else "",
            count=len(names),
            why=f"{several([*map(printable, names)])} {does} nothing: no key leaves {them} a duty or a"
            f" stream, and {have} no listener for clients, other servers or media;"
            f" who has such a name {what}",
            remedy=_leave(homeserver, meant, names, release),
            cost=RESTART_ALL,
        )


def _leave(homeserver: Homeserver, meant: str, names: list[str], release: Release) -> str:
    """What leaves them this work."""
    shown = [*map(printable, names)]
    if (duty := BY_NAME.get(meant)) is not None:
        if release not in duty.named:
            off = (
                f", and `{duty.switch}: false` in the shared file" if homeserver.is_main_doing(meant) else ""
            )
            return f"write `worker_app: {duty.app}` in its file{off}"
        value = f"[{', '.join(shown)}]" if duty.takes_list else shown[0]
        return f"set `{duty.names}: {value}` in the shared file"
    one = STREAM_WRITERS[meant].one
    takes_one = one is not None and release in one
    writers = (
        [] if takes_one else [printable(name) for name in homeserver.writers.get(meant, ()) if name != MAIN]
    )
    listed = [*writers, *shown]
    value = listed[0] if len(listed) == 1 or takes_one else f"[{', '.join(listed)}]"
    mapped = [name for name in names if name not in {one.name for one in homeserver.instances}]
    also = (
        f", and add {', '.join(map(printable, mapped))} to instance_map with host and port of the listener"
        " for replication"
        if mapped
        else ""
    )
    return f"set `stream_writers: {{{meant}: {value}}}` in the shared file{also}"


# -- media ---------------------------------------------------------------------------------------------------


def _media_not_served(homeserver: Homeserver) -> Iterator[Finding]:
    given = _given(homeserver)
    is_served = any(one.has_media and (one.serves is None or "media" in one.serves) for one in given)
    for process in given:
        if process.serves is None or process.name == MAIN:
            continue
        shown = printable(process.name)
        if "media" in process.serves and not process.has_media:
            yield Finding(
                kind="media_not_served",
                process=process.name,
                why=f"{shown} has a listener with the resource media, and `enable_media_repo` is false for"
                " it: it serves none",
                remedy=f"set `enable_media_repo: true` in {process.file}, or remove media from that listener",
                cost=RESTART_ONE,
            )
        elif process.is_for_media and not is_served:
            yield Finding(
                kind="media_not_served",
                process=process.name,
                why=f"{shown} has the media repository, and no listener with the resource media: requests for"
                " /_matrix/media are not found there",
                remedy=f"write `names: [media]` at a listener in {process.file}, beside what it has",
                cost=RESTART_ONE,
            )


_WITH_OTHERS: Final = span("1.111", "1.114")
"""The releases in which `media` lacks the endpoints for media that ask for a token: `client` has those of
clients, and `federation` those of servers, in a process that has the media repository."""
_MEDIA_OF: Final = {"client": "/_matrix/client/v1/media", "federation": "/_matrix/federation/v1/media"}


def find_media_with_others(homeserver: Homeserver, releases: Collection[Release]) -> Iterator[Finding]:
    """Endpoints for media that are in another resource than media, of which no process with media has any."""
    given = _given(homeserver)
    having = [one for one in given if one.has_media]
    within = [release for release in releases if release in _WITH_OTHERS]
    if not within or any(one.serves is None for one in given):
        return
    served = frozenset().union(*(one.serves or () for one in given))
    lacks = [
        name for name in _MEDIA_OF if name in served and not any(name in (one.serves or ()) for one in having)
    ]
    for process in having if lacks else ():
        if "media" not in (process.serves or ()):
            continue
        paths, resources = several([_MEDIA_OF[one] for one in lacks]), several(lacks)
        yield Finding(
            kind="media_not_served",
            process=process.name,
            why=f"in {release_text(min(within))} requests for {paths} are not found: there they belong to the"
            f" resource{'s' * (len(lacks) > 1)} {resources}, and not to media; no process with the media"
            " repository has them on a listener",
            remedy=f"add {resources} to the resources of the listener with media in {process.file}, or update"
            f" to {release_text(_WITH_OTHERS.until or NEWEST.release)} or newer, where media has them",
            cost=RESTART_ONE,
        )
