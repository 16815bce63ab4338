"""What is seen of a homeserver at one moment; pure data, without judgement."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from synrepl.streams.writer import Writer
from synrepl.wire.dialect import Release

_RELEASE: Final = re.compile(r"(\d{1,3})\.(\d{1,4})(?:\.(\d{1,4}))?(?!\d)", re.ASCII)


def release_of(text: str) -> Release | None:
    """The release in a text such as ``1.163.0rc1 (b=...)``; None if it has none."""
    found = _RELEASE.match(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


POSITIONS_SINCE: Final[Release] = (1, 163, 0)
"""Older releases show no positions of streams in their metrics, and none can be given."""

Positions = Mapping[str, Mapping[str, int]]
"""Tokens by stream (the generator's name, as in ``stream_positions``) and writer, as ascending numbers."""


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the database with an open transaction.

    `seconds` is the age of the transaction; None if this user may not see it. `is_idle`: it waits for its
    client. `waits_for` are the sessions that block it (0: a prepared transaction), `lock` is the table or
    kind of the lock, and `wait_seconds` says for how long it has waited; they are empty if it waits for none.
    `locked` are the tables that it has locked for everybody. `statement` is the beginning of its last
    statement, without any literal.
    """

    pid: int
    program: str
    seconds: float | None
    user: str = ""
    is_idle: bool = False
    has_written: bool = True
    waits_for: tuple[int, ...] = ()
    lock: str = ""
    wait_seconds: float | None = None
    locked: tuple[str, ...] = ()
    statement: str = ""


class CommittedRow(msgspec.Struct, frozen=True):
    """A row of a stream's table: its id as an ascending number, and its writer."""

    stream: str
    writer: str
    token: int


class Appservice(msgspec.Struct, frozen=True, kw_only=True):
    """An application service: whether Synapse has it as down, and the transactions that wait for it."""

    name: str
    is_down: bool
    first_waiting: int | None = None
    last_waiting: int | None = None


class EventsProgress(msgspec.Struct, frozen=True):
    """How far a consumer of the events, such as a pusher, has come.

    `waiting_seconds` is the age of the first event above `position` that is more than an outlier; None if
    there is no such event.
    """

    position: int
    waiting_seconds: float | None = None


class FailingPushers(msgspec.Struct, frozen=True, kw_only=True):
    """Pushers that fail at one push gateway.

    `host` is the gateway's; `example` is one of them, as ``APP of USER``. `failing_since` is when the first
    of them began to fail (Unix seconds), `newest_since` when the newest did, and `lowest` is how far the last
    of them is.
    """

    host: str
    example: str
    count: int
    failing_since: float
    newest_since: float
    lowest: EventsProgress


class Consumers(msgspec.Struct, frozen=True, kw_only=True):
    """How far those are that read the events. None: the database has no such position.

    `events` is the highest event. `appservices_reader` hands events to all application services, and
    `federation` are the senders by their names. `has_working_pushers`: at least one pusher has succeeded, and
    does not fail; `pushed_at` is when one did last (Unix seconds). Those that send mail need no gateway, and
    are none of these.
    """

    events: int | None = None
    appservices_reader: EventsProgress | None = None
    appservices: Sequence[Appservice] = ()
    federation: Mapping[str, EventsProgress] = {}
    failing_pushers: Sequence[FailingPushers] = ()
    has_working_pushers: bool = False
    pushed_at: float | None = None


class DatabaseLook(msgspec.Struct, frozen=True, kw_only=True):
    """The database at `at` (seconds of a monotonic clock).

    `rows` are rows that were committed since the look before. `unread` are parts that could not be read, each
    with the reason; `locked_out` are those that another session had locked.
    """

    at: float
    positions: Positions
    sequences: Mapping[str, int]
    rows: Sequence[CommittedRow] = ()
    open_transactions: Sequence[OpenTransaction] = ()
    consumers: Consumers = Consumers()
    unread: Sequence[str] = ()
    locked_out: Sequence[str] = ()


class MetricsLook(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one process.

    `positions` are linear, by the generator's name; None if the release shows none. `sent` and `received`
    count rows by the name on the wire. `connections` to Redis; None if it is not shown. `timeouts` count
    waits for a stream that ended without it. `release` is empty if it is not shown. `trouble` says why
    nothing was read; `is_silent`: the process is there and does not answer; `is_refused`: its
    machine says that nothing listens there.
    """

    at: float
    positions: Mapping[str, int] | None = None
    sent: Mapping[str, int] = {}
    received: Mapping[str, int] = {}
    connections: int | None = None
    timeouts: Mapping[str, int] = {}
    release: str = ""
    trouble: str = ""
    is_silent: bool = False
    is_refused: bool = False


class UnreadableRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a writer that cannot be read: how many, and of the first its token (None: unknown) and why."""

    count: int
    token: int | None
    why: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What was heard on Redis up to now.

    `positions` are the highest tokens of RDATA and POSITION, by the name on the wire and writer. `answers`
    are POSITIONs after our REPLICATE: how often each stream and writer answered, at least, to each of `asks`
    such questions. `rows` counts RDATA, also of the `unreadable`. `since` is when the channel was subscribed,
    of the looks' clock. `subscribers` of the channel, without us; None if Redis did not say. `replica_of`:
    the address of the master, if this Redis is a replica; empty if it is none, or did not say. `trouble`: why
    there is nothing.
    """

    positions: Positions = {}
    answers: Mapping[Writer, int] = {}
    asks: int = 0
    rows: Mapping[Writer, int] = {}
    unreadable: Mapping[Writer, UnreadableRows] = {}
    subscribers: int | None = None
    replica_of: str = ""
    since: float = float("inf")
    trouble: str = ""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen at one moment. A part that was not looked at is None, or not there.

    `database_trouble` says why the database could not be queried, and `database_hint` what to do about it.
    """

    at: float
    database: DatabaseLook | None = None
    database_trouble: str = ""
    database_hint: str = ""
    heard: Heard | None = None
    metrics: Mapping[str, MetricsLook] = {}
