"""Notes: the short texts that a log keeps of itself, in a table of names and values beside its facts.

Every note is declared here. A note is absent until it is first stored. Those of several fields are JSON, and
belong to the module named at them; a mark is `YES` or absent.
"""

from collections.abc import Mapping
from typing import Final, TypedDict, cast

YES: Final = "yes"
"""The text of a mark that is set."""


class Notes(TypedDict, total=False):
    """The notes of a log."""

    uuid: str
    """This copy of the log; made with it, and kept for its life."""
    history: str
    """The history whose facts the log has: all copies of one log have the same."""
    server_name: str
    """The server name of the homeserver."""
    joined: str
    """A mark: the log is a complete copy of an upstream's, even if it has no fact yet."""
    filter: str
    """The filter of a copy of less than everything: a `Filter`, as JSON."""
    joining: str
    """In a staged copy: the JOIN that it belongs to, as JSON (`replicas/replica/join.py`)."""
    resync: str
    """A mark: an operator asked for a new copy, which has not arrived yet."""
    role: str
    """The role of the daemon, as JSON (`replicas/roles/record.py`); without it the settings decide."""
    promoting: str
    """The promotion in progress, as JSON (`replicas/roles/record.py`)."""
    handover: str
    """The hand-over in progress, as JSON (`replicas/roles/handover.py`)."""
    promised: str
    """The digest at the promise that counts (`replicas/promises.py`)."""
    upstream_at: str
    """The address of the upstream, as ``NATIVE HTTP``."""
    primary_at: str
    """The address of the primary, as ``NATIVE HTTP``."""
    told_http: str
    """The HTTP addresses that configured upstreams told of themselves, by their endpoints, as JSON."""
    tables: str
    """At a replica: the streams that its primary reads from tables (`Log.table_streams`), as a JSON list."""
    keys: str
    """The issued keys, as JSON (`replicas/issued_keys.py`)."""
    peers: str
    """The addresses of the upstream's other replicas, as a JSON list."""
    unfinished_copies: str
    """The uuids of backups that copy, as a JSON list (`replicas/relay/unfinished_copies.py`)."""
    opened: str
    """While a daemon has the log's file open: which file that is (`storage/sqlite.py`)."""
    floor: str
    """After a restore: every token that the daemon gives is above this one (`storage/token_floor.py`)."""


class NoteChanges(TypedDict, total=False):
    """Notes to store; None deletes one."""

    server_name: str | None
    history: str
    joined: str | None
    filter: str | None
    joining: str | None
    resync: str | None
    role: str | None
    promoting: str | None
    handover: str | None
    promised: str | None
    upstream_at: str | None
    primary_at: str | None
    told_http: str | None
    tables: str | None
    keys: str | None
    peers: str | None
    unfinished_copies: str | None
    floor: str | None


COPY_NOTES: Final = frozenset({"history", "filter", "joined", "resync", "opened"})
"""The notes that describe a copy and its file: a log that is replaced by another copy takes that copy's."""


def changed(notes: Notes, changes: Mapping[str, object]) -> Notes:
    """Return the notes after these changes; None deletes a note."""
    return cast("Notes", {name: text for name, text in {**notes, **changes}.items() if text is not None})


def own_notes(notes: Notes) -> dict[str, object]:
    """Return the notes that stay when another copy replaces a log."""
    return {name: text for name, text in notes.items() if name not in COPY_NOTES}
