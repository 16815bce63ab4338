"""What the database says of one statement, row, lock, login or schema."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from synrepl.homeserver.explanation.duplicates import told_of_duplicate
from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.refused_logins import told_of_login
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.wire.text import printable


def _id_twice(match: Match, writers: Writers) -> Passage | None:
    """Explain a row that is there already: by a sequence, or because it was stored twice."""
    told = told_of_duplicate(match.text, match.values[-1])
    if told is None:
        return None
    # In PostgreSQL's own log there is no exception: Synapse may have done without the row.
    is_own = told.is_harmless and "Error" not in match.text and "Violation" not in match.text
    passage = passage_of(match, told.words, told.advice or [match.message.do], [])
    return msgspec.structs.replace(passage, severity="look" if is_own else passage.severity)


def _sql(match: Match, writers: Writers) -> Passage | None:
    """Explain a statement of a start, or one that took long."""
    if failed := re.search(
        r"\[(?:SQL|TXN) FAIL\] \{(?P<name>[^}]{1,100})\}\s*(?P<why>.*)", match.text, re.DOTALL
    ):
        told = f"A statement to the database failed, of {printable(failed['name'])}: {excerpt(failed['why'])}"
        passage = passage_of(match, [told], [], [])
        return msgspec.structs.replace(passage, severity="look")
    seconds = float(match.values[-1]) if match.pattern.literals[-1] == " sec" else 0.0
    if seconds >= 1:
        words = [f"A statement to the database took {seconds:.1f} s."]
        advice = ["the line [SQL] before it, with the same name in braces, has it: EXPLAIN it in psql"]
        return msgspec.structs.replace(passage_of(match, words, advice, []), severity="look")
    if "{_load_current_ids" not in match.text:
        return None
    told = "At its start the process reads where a stream is: how far its writers have stored it."
    return passage_of(match, [told], [], [])


_OF_TABLE: Final = re.compile(r"\b(?:from|into|update)\s+(?P<table>[a-z_]\w{2,63})", re.ASCII | re.IGNORECASE)


def _pg_duration(match: Match, writers: Writers) -> Passage:
    """Explain how long PostgreSQL took for a statement, and for which table."""
    found = _OF_TABLE.search(match.text)
    where = f" on {found['table']}" if found else ""
    words = [
        f"PostgreSQL took {float(match.values[0]) / 1000:.1f} s for a statement{where}.",
        match.message.means,
    ]
    return passage_of(match, words, [match.message.do], [])


def _dead_rows(match: Match, writers: Writers) -> Passage | None:
    """Explain a VACUUM that could remove everything: it says how many rows it could not, also if none."""
    if int(match.values[0]):
        return None
    told = "VACUUM removed all rows that were deleted or changed."
    return msgspec.structs.replace(passage_of(match, [told], [], []), severity="normal")


def _no_row(match: Match, writers: Writers) -> Passage | None:
    """Explain a row that is missing by its table."""
    if match.values[-1] != "pushers":
        return None
    words = [
        (
            "The pusher was deleted while it was at work: its user logged out, or its telephone registered a"
            " new one. Nothing is lost."
        )
    ]
    return msgspec.structs.replace(passage_of(match, words, [], []), severity="look")


def _login(match: Match, writers: Writers) -> Passage | None:
    """Explain a login that PostgreSQL refused by its words."""
    told = told_of_login(match.text)
    return None if told is None else passage_of(match, *told, [])


def _deadlock(match: Match, writers: Writers) -> Passage | None:
    """Explain a deadlock with a change of a table, of which the lock tells."""
    if "AccessExclusiveLock" not in match.text:
        return None
    words = [
        match.message.means,
        (
            "One of the two wants a table for itself alone (AccessExclusiveLock), as to change it: an"
            " upgrade of the schema at the start of the main process, or an operator, while others used it."
        ),
    ]
    advice = [
        "end all workers while the main process of a new release starts; it upgrades the database first"
    ]
    return passage_of(match, words, advice, [])


def _there_already(match: Match, writers: Writers) -> Passage | None:
    """Explain what is there already by who says so."""
    if "Error" in match.text or "Duplicate" in match.text:
        return None
    words = [
        match.message.means,
        "In PostgreSQL's own log alone, while Synapse starts and serves, that is no trouble.",
    ]
    return msgspec.structs.replace(passage_of(match, words, [match.message.do], []), severity="look")


def _schema(match: Match, writers: Writers) -> Passage | None:
    """Explain a schema that is newer than a process: the message speaks of older ones."""
    versions = [int(one) for one in match.values if one.isdigit()]
    if len(versions) != 2 or versions[0] >= versions[1]:
        return None
    words = [
        (
            f"The schema of the database ({versions[1]}) is newer than the release of this process"
            f" ({versions[0]}), which refuses to start."
        ),
        (
            "A newer release was here and upgraded the schema: this process was not updated with the others,"
            " or was set back. The line's own advice, to run the main process, is of the opposite case: no"
            " main process sets a schema back. Before 1.47 a main process may run on a schema that is a"
            " little newer while the workers of its release do not (matrix-org/synapse#11255)."
        ),
        "Nothing is damaged: this process has changed nothing.",
    ]
    advice = [
        (
            f"start all processes with the newer release again, of which the schema is {versions[1]}: the"
            " main process too, where it was set back"
        ),
        (
            "to stay with this release: the backup of before the upgrade has its schema; what was stored"
            " since is then lost"
        ),
    ]
    return passage_of(match, words, advice, [])


SCHEMA_LOOKED_AT: Final = re.compile(
    r"Checking schema deltas for v|.{1,100}: Existing schema is \d", re.ASCII
)
"""Messages after which a process at an older schema ends its start."""

_APP: Final = re.compile(r"synapse/app/(?!_base|homeserver)\w+\.py", re.ASCII)
_OF_OLD_SCHEMA: Final = (
    "the schema of the database lacks steps that this worker's release needs, which only the main process"
    " makes (the missing line then has Database schema delta, or Expected database schema version). Then"
    " nothing is damaged"
)
_MAIN_FIRST: Final = (
    "start the main process of the new release first, and wait until it is up: it upgrades the database"
    " (update_synapse_database does that alone too). Then start the workers of the same release"
)


def with_schema_check(passage: Passage, frames: Sequence[str]) -> Passage:
    """Say of a start that ended right after the check of the schema, without its exception, what ended it."""
    is_worker = any(_APP.fullmatch(frame) for frame in frames)
    if not is_worker and "synapse/app/homeserver.py" in frames:
        told = (
            "It ended right after the process looked at the schema: a step of the upgrade failed, or what the"
            " main process looks at next. The missing line tells which."
        )
        return msgspec.structs.replace(passage, words=[*passage.words, told], cause=told)
    told = (
        "It is a worker, and its start ended right after it looked at the schema: most likely"
        f" {_OF_OLD_SCHEMA}."
        if is_worker
        else "It ended right after the process looked at the schema. If it is a worker: most likely"
        f" {_OF_OLD_SCHEMA}. If it is the main process, a step of the upgrade failed."
    )
    first, *more = passage.words
    step = _MAIN_FIRST if is_worker else f"for a worker: {_MAIN_FIRST}"
    return msgspec.structs.replace(
        passage, words=[first, told, *more], advice=[step, *passage.advice], cause=told
    )


DETAILS: Final[Mapping[str, Detail]] = {
    "db_dead_rows": _dead_rows,
    "db_old_worker": _schema,
    "db_there_already": _there_already,
    "id_twice": _id_twice,
    "no_row": _no_row,
    "sql_debug": _sql,
    "txn_debug": _sql,
    "pg_duration": _pg_duration,
    "deadlock": _deadlock,
    "db_password": _login,
}
"""What explains messages by their values, by the key of the message."""
