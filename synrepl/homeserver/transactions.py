"""Transactions that wait for locks, hold them, or keep a writer's position from moving; without I/O."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from synrepl.homeserver.doctor.synapse import STREAMS
from synrepl.homeserver.findings import Finding
from synrepl.homeserver.looks import Look, OpenTransaction
from synrepl.homeserver.streams import WIRE
from synrepl.html.humanize import counted
from synrepl.wire.text import printable

HELD_SECONDS: Final = 10.0
"""A position that stands still for so long, while ids are taken, is held; a lock, if one waits so long."""

LATENESS_SECONDS: Final = 0.5
"""By so much looks may be closer than they should be."""

MAX_STATEMENT: Final = 100
"""The most characters of a statement that are shown."""

ROW: Final = "a row"
"""What a session waits for that waits for the end of another transaction."""

LITERAL: Final = re.compile(r"""(?:\b(?:[EBXN]|U&))?'|\$|--|/\*|(?<![\w"])\d""", re.IGNORECASE)
"""Where a literal, a parameter or a comment begins in SQL."""

STREAM_TABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        table.name: WIRE.get(stream.name, stream.name)
        for stream in reversed(STREAMS)
        for table in stream.tables
    }
)
"""The stream, by its name on the wire, whose facts a table has."""

SHOW_LOCKS: Final = (
    "SELECT pid, pg_blocking_pids(pid), application_name, state, xact_start, query FROM pg_stat_activity"
    " WHERE datname = current_database() ORDER BY xact_start"
)


def statement_head(text: str) -> str:
    """Return the beginning of a statement, without any literal: it ends where the first one begins.

    Synapse's driver writes values into the text, and any of them may be a secret. Where a literal ends
    depends on settings of its session, so nothing after the first is shown.
    """
    found = LITERAL.search(text)
    head = " ".join((text if found is None else text[: found.start()]).split())
    shown = printable(head, limit=MAX_STATEMENT)
    return f"{shown} ..." if found is not None and not shown.endswith("...") else shown


# -- locks -------------------------------------------------------------------------------------------------


def find_lock_waits(looks: Sequence[Look]) -> Iterator[Finding]:
    """Find sessions that hold up others, or whole tables, one finding for each.

    A healthy homeserver's sessions wait for each other's locks for moments. One that waited ten seconds ago
    and waits since is blocked, whatever its stream does: a writer that was blocked before it took an id shows
    no sequence that moves. A table that was locked for everybody so long ago is blocked even if no session of
    the homeserver has asked for it yet.
    """
    databases = [look.database for look in looks if look.database is not None]
    since = [one for one in databases if one.at <= databases[-1].at - HELD_SECONDS + LATENESS_SECONDS]
    if not since:
        return
    lasting = databases[databases.index(since[-1]) :]
    sessions = {one.pid: one for one in lasting[-1].open_transactions}
    blocked: dict[int, list[OpenTransaction]] = {}
    waiting = set.intersection(
        *({one.pid for one in look.open_transactions if one.waits_for} for look in lasting)
    )
    locking = set.intersection(
        *({one.pid for one in look.open_transactions if one.locked} for look in lasting)
    )
    still = lasting[-1].at - lasting[0].at
    for pid in sorted(waiting):
        if _waited(sessions[pid], still) >= HELD_SECONDS - LATENESS_SECONDS:
            blocked.setdefault(_first_blocker(sessions[pid], sessions), []).append(sessions[pid])
    for pid, blocked_by_it in blocked.items():
        blocker = sessions.get(pid) or OpenTransaction(pid=pid, program="", seconds=None)
        yield _lock_wait(blocker, blocked_by_it, still)
    for pid in sorted(locking - set(blocked)):
        yield _locked_tables(sessions[pid], still)


def _waited(session: OpenTransaction, still: float) -> float:
    """For how long it has waited. An older server, or one that does not show it, leaves it to the looks."""
    if session.wait_seconds is not None:
        return session.wait_seconds
    return still if session.seconds is None else min(still, session.seconds)


def _first_blocker(session: OpenTransaction, sessions: Mapping[int, OpenTransaction]) -> int:
    """The session at the end of the queue that this one is in: one that waits for nobody."""
    seen = {session.pid}
    while session.waits_for:
        # Several may share a lock: the oldest transaction is the most likely to have been forgotten.
        pid = max(session.waits_for, key=lambda one: sessions[one].seconds or 0.0 if one in sessions else 0.0)
        if pid in seen or pid not in sessions:
            return pid
        seen.add(pid)
        session = sessions[pid]
    return session.pid


def _lock_wait(blocker: OpenTransaction, waiting: Sequence[OpenTransaction], still: float) -> Finding:
    longest = max(waiting, key=lambda one: _waited(one, still))
    seconds = _waited(longest, still)
    locks = list(dict.fromkeys(one.lock for one in waiting))
    others = f", and {counted(len(waiting) - 1, 'more session')}" if len(waiting) > 1 else ""
    return Finding(
        kind="waiting_for_lock",
        stream=next((STREAM_TABLES[one] for one in locks if one in STREAM_TABLES), ""),
        since_seconds=round(seconds, 1),
        count=len(waiting),
        why=f"{_who(longest)} waits for a lock ({longest.lock}) for {seconds:.0f} s"
        + (f" in its statement {longest.statement}" if longest.statement else "")
        + f"{others}; {_describe_blocker(blocker)}",
        remedy=_end(blocker),
        command=SHOW_LOCKS,
    )


def _locked_tables(blocker: OpenTransaction, seconds: float) -> Finding:
    tables = ", ".join(blocker.locked)
    return Finding(
        kind="waiting_for_lock",
        stream=next((STREAM_TABLES[one] for one in blocker.locked if one in STREAM_TABLES), ""),
        since_seconds=round(seconds, 1),
        why=f"nobody can read or write {tables}: {_describe_blocker(blocker)}",
        remedy=_end(blocker),
        command=SHOW_LOCKS,
    )


def _describe_blocker(blocker: OpenTransaction) -> str:
    if blocker.pid == 0:
        return "a prepared transaction holds the lock"
    who = f"{_who(blocker)} holds the lock"
    if blocker.seconds is None:
        return f"{who}; what it does is shown to users of the database with pg_read_all_stats"
    does = "is idle in its transaction" if blocker.is_idle else "is working in its transaction"
    last = f" ({blocker.statement})" if blocker.statement else ""
    return f"{who} and {does}{last}, which is open for {blocker.seconds:.0f} s"


def _end(blocker: OpenTransaction) -> str:
    if blocker.pid == 0:
        return "SELECT gid, prepared FROM pg_prepared_xacts names it: COMMIT PREPARED or ROLLBACK PREPARED it"
    kill = f"SELECT pg_terminate_backend({blocker.pid}) ends that session; look first at what it does"
    if blocker.is_idle:
        return f"let the program of session {blocker.pid} commit or roll back; {kill}"
    return f"wait for the end of session {blocker.pid}, or end it: {kill}"


# -- held --------------------------------------------------------------------------------------------------


def find_held(looks: Sequence[Look]) -> Iterator[Finding]:
    """Ids go on, and the writer's position does not; with the oldest transaction as the reason.

    Rows that a writer committed above its position show that it waits for an earlier id. Without rows, a
    sequence that moved while no position of the stream did is held if a transaction is open for as long: a
    sequence alone may be above all positions of a healthy stream. One that has only read, as a copy of the
    database or a report, holds no id.
    """
    databases = [look.database for look in looks if look.database is not None]
    if len(databases) < 3 or databases[-1].at - databases[0].at < HELD_SECONDS:
        return
    first, later, last = databases[0], databases[1], databases[-1]
    still = last.at - first.at
    for stream, sequence in sorted(later.sequences.items()):
        writers = {
            writer: position
            for writer, position in first.positions.get(stream, {}).items()
            if last.positions.get(stream, {}).get(writer) == position
        }
        committed: dict[str, list[int]] = {}
        for row in later.rows:
            if row.stream == stream and row.token > writers.get(row.writer, row.token):
                committed.setdefault(row.writer, []).append(row.token)
        reason = oldest_transaction(
            [one for one in last.open_transactions if one.has_written or one.waits_for], still
        )
        for writer, tokens in sorted(committed.items()):
            yield _hold(
                stream,
                writer,
                still,
                f"{writer} committed {stream} {min(tokens)} to {max(tokens)}, and its position stays at"
                f" {writers[writer]}: it waits for an earlier id",
                reason,
                count=len(tokens),
            )
        all_still = bool(writers) and len(writers) == len(last.positions.get(stream, {}))
        if (
            not committed
            and all_still
            and reason is not None
            and sequence > first.sequences.get(stream, sequence)
        ):
            yield _hold(
                stream,
                next(iter(writers)) if len(writers) == 1 else "",
                still,
                f"ids of {stream} are taken up to {sequence}, and no writer's position moves beyond"
                f" {max(writers.values())}",
                reason,
                count=sequence - first.sequences.get(stream, sequence),
            )


def _hold(
    stream: str, writer: str, still: float, why: str, reason: OpenTransaction | None, *, count: int
) -> Finding:
    if reason is None:
        because = "; no transaction that wrote is open for as long"
        remedy = f"look at the log of {writer or 'the writers'}; a restart of it gives up its unfinished ids"
    else:
        what = _describe(reason)
        because = f"; the oldest transaction that wrote is open for {reason.seconds:.0f} s: {what}"
        blocker = reason.waits_for[0] if reason.waits_for else reason.pid
        remedy = (
            f"look at what session {blocker} does; if it is what holds it, SELECT"
            f" pg_terminate_backend({blocker}) ends that session"
        )
    return Finding(
        kind="held",
        stream=WIRE.get(stream, stream),
        writer=writer,
        process=writer,
        since_seconds=round(still, 1),
        count=count,
        why=why + because,
        remedy=remedy,
        command=SHOW_LOCKS,
    )


def oldest_transaction(sessions: Iterable[OpenTransaction], seconds: float) -> OpenTransaction | None:
    """The session to blame: one that waits for a lock, else the oldest open transaction."""
    old = [one for one in sessions if (one.seconds or 0.0) >= seconds - 1.0]
    return next((one for one in old if one.waits_for), old[0] if old else None)


def _describe(session: OpenTransaction) -> str:
    if session.waits_for:
        blockers = ", ".join(map(str, session.waits_for))
        return f"{_who(session)} waits for a lock ({session.lock}) that session {blockers} holds"
    return f"{_who(session)} is {'idle in its transaction' if session.is_idle else 'working'}"


def _who(session: OpenTransaction) -> str:
    """The session with its program and its user, as far as they are known."""
    program = ", ".join(filter(None, (session.program, session.user and f"user {session.user}")))
    return f"session {session.pid}" + (f" ({program})" if program else "")
