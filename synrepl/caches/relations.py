"""What Synapse keeps of the tables of its database: for those who have changed a row by SQL.

``relations.txt`` has a line for each table with its columns, and below it, indented, lines for each cache
whose function reads the table, by itself or through other cached functions, with the columns that it reads.
``scripts/lib/cached_columns.py`` made it from the wheels of 1.30, 1.46, 1.66, 1.79, 1.98, 1.107, 1.120,
1.135, 1.150 and 1.163: a span such as ``1.79..`` stands where some of them read the columns and others do
not, and its ends may be some releases off.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final, NamedTuple

from synrepl.caches.names import ROOM_ALIASES, CacheName, names_of
from synrepl.caches.unreachable import runs_out
from synrepl.caches.vintage import Vintage
from synrepl.wire.dialect import Span, span, whole_release


class _Copy(NamedTuple):
    """A cache that has what it read of some columns of a table, in the releases of `span`."""

    cache: str
    span: Span
    columns: frozenset[str]


class _Relation(NamedTuple):
    columns: frozenset[str]
    copies: tuple[_Copy, ...]


MAX_TABLES: Final = 3
"""A column of more tables than this says nothing without its table."""
MAX_ONE_BY_ONE: Final = 3
"""More caches of a room than this are dropped with all that is of the room."""
MAX_LIKE: Final = 4
_FILLING: Final = frozenset({"", "get", "is", "for", "from", "by", "of", "set", "cache", "user", "room"})
"""Words of methods that tell little."""
_UNSEEN: Final = frozenset({"token"})
"""Arguments that others should not see on a command line."""

_POSITION: Final = (
    "it is read once by the process that does this work, which then writes its own position over it: stop"
    " that process, change the row, and start it"
)
_EVENTS: Final = (
    "events are in a cache that no row names one by one: --room ROOM drops all of it since 1.86, before that"
    " a restart of each process does; clients and other servers keep what they were sent"
)
_REMOTE_DEVICES: Final = (
    "it is a copy of what another server says: a row in device_lists_remote_resync (user_id, and added_ts in"
    " ms) has it fetched anew within half a minute"
)
_FROZEN_DEVICES: Final = (
    "before 1.68 it stays as it was when the last room in common with that user was left, even after they"
    " share one again (matrix-org/synapse#13651): update, and then have it fetched anew"
)
_FROZEN_UNTIL: Final = (1, 68)
_OF_OTHERS: Final = ("device_lists_remote_cache", "device_lists_remote_extremeties")
"""Tables with copies of what other servers say."""
_MEDIA: Final = "browsers and proxies keep a file for a day (Cache-Control), and other servers for good"
_PRESENCE: Final = (
    "its rows are in presence_stream, and what users see is in the memory of the process that writes"
    " presence: restart it"
)
_GROUPS: Final = "groups of states never change, and no row drops them: restart each process"

_BESIDES: Final = {
    "background_updates": "once nothing was left in it, the process with the background work does not look"
    " again: restart that process",
    "cache_invalidation_stream_by_instance": "it is the stream of invalidations itself; releases from 1.98 at"
    " the latest remove its rows after a week; a process that was cut off misses what was removed",
    "delayed_events_stream_pos": _POSITION,
    "device_lists_remote_cache": _REMOTE_DEVICES,
    "device_lists_remote_extremeties": _REMOTE_DEVICES,
    "event_json": _EVENTS,
    "events": _EVENTS,
    "local_media_repository": _MEDIA,
    "local_media_repository_url_cache": "the process that makes previews keeps each for an hour",
    "presence": _PRESENCE,
    "presence_stream": _PRESENCE,
    "profiles": "rooms show the member events, which have their own copy of name and avatar: a change by the"
    " API sends new ones, a change by SQL does not",
    "pushers": "the process that pushes has each pusher in its memory: restart it, or change it by the API",
    "redactions": _EVENTS,
    "rejections": _EVENTS,
    "remote_media_cache": _MEDIA,
    "room_forgetter_stream_pos": _POSITION,
    "state_group_edges": _GROUPS,
    "state_groups": _GROUPS,
    "state_groups_state": _GROUPS,
    "stats_incremental_position": _POSITION,
    "stream_positions": "each process reads it when it starts: stop all, change the row, and start them",
    "user_directory_stream_pos": _POSITION,
}
"""What is kept of a table elsewhere than in caches, and what ends that. Read in 1.163."""

_STREAM: Final = "a client that has read past the stream_id of a changed row is not told of the change"
"""Of tables whose rows were sent under their `stream_id`."""

_SENT: Final = ("account_data", "room_account_data", "receipts_linearized", "presence_stream", "device_inbox")


@cache
def _relations() -> Mapping[str, _Relation]:
    found: dict[str, _Relation] = {}
    table = ""
    for line in resources.files(__package__).joinpath("relations.txt").read_text("utf-8").splitlines():
        first, *words = line.split()
        if not line.startswith(" "):
            table = first
            found[table] = _Relation(frozenset(words), ())
            continue
        has = Span()
        if ".." in words[0]:
            has = span(*words.pop(0).split(".."))
        copy = _Copy(first, has, frozenset(words))
        found[table] = found[table]._replace(copies=(*found[table].copies, copy))
    return MappingProxyType(found)


def find_columns(name: str) -> list[str]:
    """What the name stands for in the database: a table, or columns as ``table.column``; [] if for nothing.

    A column may be given alone, if few tables have it.
    """
    tables = _relations()
    table, _, column = name.partition(".")
    if table in tables:
        return [name] if not column or column in tables[table].columns else []
    of = [f"{one}.{name}" for one, its in tables.items() if name in its.columns]
    return of if len(of) <= MAX_TABLES else []


def find_like(name: str) -> list[str]:
    """Tables, and then columns, with all the words of a name, for one that is none of them itself."""
    words = _words(name)
    if not words:
        return []
    tables = [table for table in _relations() if words <= _words(table)]
    columns = [
        f"{table}.{column}"
        for table, its in _relations().items()
        for column in sorted(its.columns)
        if words <= _words(column) and table not in tables
    ]
    return [*sorted(tables, key=len), *columns][:MAX_LIKE]


def _words(name: str) -> set[str]:
    words = {*name.lower().replace(".", "_").split("_")} - _FILLING
    return {word.removesuffix("s") for word in words}


def said_of(name: str, release: tuple[int, ...]) -> str:
    """Say what a release keeps of a table or a column, and what drops that; "" if the name is neither."""
    return ". ".join(_said(one, release) for one in find_columns(name))


def said_of_source(cache: str, release: tuple[int, ...]) -> str:
    """Say that a cache has what it read of a copy of another server's words; "" if it has nothing of one."""
    at = whole_release(release)
    for table in _OF_OTHERS:
        if any(one.cache == cache and at in one.span for one in _relations()[table].copies):
            about = "; ".join(_of_table(table, release))
            what = f"it is read from the table {table}, and if that is stale, dropping it changes nothing"
            return f"{what}: {about}"
    return ""


def _of_table(table: str, release: tuple[int, ...]) -> list[str]:
    found = [_BESIDES[table]] if table in _BESIDES else []
    return found + ([_FROZEN_DEVICES] if table in _OF_OTHERS and release < _FROZEN_UNTIL else [])


def _said(name: str, release: tuple[int, ...]) -> str:
    table, _, column = name.partition(".")
    names, at = names_of(release), whole_release(release)
    which = ".".join(map(str, release))
    copies = dict.fromkeys(
        one.cache
        for one in _relations()[table].copies
        if at in one.span and (not column or column in one.columns)
    )
    found = [names[cache] for cache in copies if cache in names]
    run_out = [said for cache in copies if (said := runs_out(cache, release))]
    besides = [*run_out, *_of_table(table, release), *([_STREAM] if table in _SENT else [])]
    what = f"{name} is a {'column' if column else 'table'} of the database, and no cache"
    if not found:
        after = besides or [
            "a change is seen at the next read; if it is not, restart the process that answers"
        ]
        known = "that rows drop" if run_out else "that is known here"
        return f"{what}: Synapse {which} has nothing of it in a cache {known}; {'; '.join(after)}"
    drops = ", ".join(_drops(found, release))
    kept = f"Synapse {which} keeps what it read of it until these are dropped: {drops}"
    return f"{what}. {'; '.join([kept, *besides])}"


def _drops(found: list[CacheName], release: tuple[int, ...]) -> list[str]:
    """The arguments of the command that drop entries of these caches."""
    of_room = ROOM_ALIASES[0]
    reached = Vintage.of(".".join(map(str, release))).reaches(of_room) if of_room in names_of(release) else ()
    by_room = [one for one in found if one.name in reached]
    if len(by_room) <= MAX_ONE_BY_ONE:
        by_room = []
    drops = [f"--room ROOM (for {len(by_room)} caches at once)"] if by_room else []
    return drops + [_drop(one) for one in found if one not in by_room]


def _drop(one: CacheName) -> str:
    if _UNSEEN.intersection(one.arguments) or (one.texts < len(one.arguments) and not one.is_tree):
        return f"--all {one.name}"
    return " ".join([one.name, *(argument.upper() for argument in one.arguments[: one.texts])])
