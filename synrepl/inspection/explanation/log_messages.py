"""Messages of Synapse's log about streams: what happened, and what to look at next.

The messages are those of releases 1.66.0 and 1.163.2, and of threads of Synapse's issues (element-hq/synapse
20080, 18412, 17215; matrix-org/synapse 16093, 15136). A message is found anywhere in a line.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from synrepl.inspection.explanation.results import Passage
from synrepl.inspection.explanation.tokens import (
    NUMBERED,
    VALUE,
    FieldPosition,
    SyncToken,
    Writers,
    find_tokens,
    names_advice,
    read_position,
    token_fields,
)
from synrepl.inspection.streams import (
    BY_NAME,
    POSITION_NAMES,
    lag_advice,
    position_query,
    writers_sentence,
    written_by,
)
from synrepl.wire.text import printable

SYNC_WAIT_SECONDS: Final = 10
"""How long a process of Synapse waits for the streams of a client's token (1.109 and later)."""

REPLICATION_WAIT_SECONDS: Final = 5
"""How long a process of Synapse waits for the rows that follow from its request to another process."""

_STREAM_NAME: Final = r"[\w.-]{1,100}"
_INTEGER: Final = r"-?\d{1,19}"

_STREAMS_WAIT: Final = re.compile(
    r"(?P<verb>Timed out w|W)aiting for"
    r" (?:this worker's streams to advance to given token|current token to reach):?(?P<rest>.*)",
    re.DOTALL | re.ASCII,
)
_LAGGING: Final = re.compile(
    rf"(?<!\w)(?P<field>[a-z_]{{2,40}}?)(?:_key)? \(at (?P<current>{VALUE}),"
    rf" waiting for (?P<given>{VALUE})\)",
    re.ASCII,
)
_ROWS_WAIT: Final = re.compile(
    rf"(?P<verb>Timed out w|Finished w|W)aiting for repl stream '(?P<stream>{_STREAM_NAME})' to reach"
    rf" (?P<given>{_INTEGER})(?: \((?P<writer>[^()\s]{{1,255}})\))?"
    rf"(?:; currently at:? (?P<current>{_INTEGER}))?",
    re.ASCII,
)
_EMPTY_SYNC: Final = re.compile(
    r"Timed out waiting for worker to catch up\. Returning empty response", re.ASCII
)
_BOUNDED: Final = re.compile(
    rf"Bounding token from the future '?(?:StreamKeyType\.)?(?P<field>\w{{2,40}})'?:"
    rf" token: (?P<given>{VALUE}), bound: (?P<current>{_INTEGER})",
    re.ASCII,
)
_TO_DEVICE_AHEAD: Final = re.compile(
    rf"Got to-device\.since from the future\. since token: (?P<given>{_INTEGER}) is ahead of our current"
    rf" to_device stream position: (?P<current>{_INTEGER})",
    re.ASCII,
)
_POSITION_AHEAD: Final = re.compile(
    rf"\b[Pp]osition of stream ['\"]?(?P<stream>{_STREAM_NAME})['\"]?[^\n]{{0,200}}?\bis ahead\b",
    re.ASCII,
)
_INCONSISTENT: Final = re.compile(
    r"Postgres sequence '(?P<sequence>\w{1,100})' is inconsistent with associated\s+(?:stream position\s+of"
    r" '(?P<stream>\w{1,100})'|table '(?P<table>\w{1,100})')",
    re.ASCII,
)
_SEQUENCE_BEHIND: Final = re.compile(
    rf"Postgres sequence (?P<sequence>\w{{1,100}}) is behind table (?P<table>\w{{1,100}}):"
    rf" (?P<current>{_INTEGER}) < (?P<given>{_INTEGER})",
    re.ASCII,
)
_FETCHING: Final = re.compile(
    rf"Fetching replication rows for '(?P<stream>{_STREAM_NAME})'(?: / (?P<writer>[^\s]{{1,255}}))? between"
    rf" (?P<current>{_INTEGER}) and (?P<given>{_INTEGER})",
    re.ASCII,
)
_UNKNOWN: Final = re.compile(
    rf"Got (?P<command>RDATA|POSITION) for unknown stream: (?P<stream>{_STREAM_NAME})", re.ASCII
)
_LOST: Final = re.compile(
    r"Lost replication connection; streams now disconnected: (?P<streams>.{0,1000})", re.ASCII
)
_DROPPED: Final = re.compile(r"Dropping command as not connected: '(?P<command>[A-Z_]{1,40})'", re.ASCII)

CONTINUES: Final = re.compile(
    r"(?:is inconsistent with associated(?: stream position)?|to given token:|current token to reach)\s*\Z",
    re.ASCII,
)
"""The end of a line whose message goes on in the next line."""

SEQUENCE_QUERY: Final = "SELECT last_value, is_called FROM {}"

Found = re.Match[str]


def explain_message(text: str, writers: Writers) -> Passage | None:
    """Explain the first known message in a text; None if there is none."""
    for pattern, explain in _MESSAGES.items():
        if found := pattern.search(text):
            return explain(found, writers)
    return None


def _streams_wait(found: Found, writers: Writers) -> Passage:
    """Explain the wait of a request for the streams of its token: names the fields that are behind."""
    pairs = {
        one["field"]: (read_position(one["given"]), read_position(one["current"]))
        for one in _LAGGING.finditer(found["rest"])
    }
    tokens = [token for _, token in find_tokens(found["rest"], writers)]
    has_timed_out = found["verb"] != "W"
    words: list[str] = []
    rows: list[dict[str, Any]] = []
    late: dict[str, _Lag] = {}
    if pairs or len(tokens) >= 2:
        lagging = _lagging(pairs) if pairs else _lagging(_pairs(tokens[0], tokens[1]))
        for one in lagging:
            late.setdefault(one.field, one)
        words += [one.sentence() for one in late.values()]
        rows = [one.row() for one in lagging]
        if not late:
            words.append("No field of the token is behind: this process has everything that it waited for.")
            if "typing" in tokens[0].positions:
                words.append("Typing is not compared, as it begins at 0 again when its writer restarts.")
    elif tokens:
        words.append("The line has only one token: it does not tell where this process stands.")
        rows = token_fields(tokens[0])
    else:
        words.append("A request waits for this process to reach its token, but the line has no positions.")
    streams = [BY_NAME[field].stream for field in late if field in BY_NAME]
    if len(streams) == 1:
        words.append(writers_sentence(streams[0]))
    elif streams:
        words.append(
            "The table has the key of the homeserver's configuration that lists the writers; without the key"
            " the main process writes."
        )
    words.append(
        f"A request waited {SYNC_WAIT_SECONDS} s for that. A /sync then gets an empty response with the same"
        " token: its client asks again, and receives nothing until this process has caught up."
        if has_timed_out
        else f"This is not an error yet: the request waits up to {SYNC_WAIT_SECONDS} s."
    )
    advice = lag_advice(streams) if streams else []
    advice += names_advice(row["writer"] for row in rows if "writer" in row)
    kind = "stuck_sync" if has_timed_out else "waiting_sync"
    return _passage(kind, found, words, advice, rows)


class _Lag(msgspec.Struct, frozen=True):
    """By how much this process is behind in one field of a token. `writer` is "" for all but those named."""

    field: str
    writer: str
    given: int
    current: int

    def sentence(self) -> str:
        of = f" its {NUMBERED}{self.writer.removeprefix(NUMBERED)}" if self.writer else ""
        return (
            f"{self.field} is {self.given - self.current:,} behind{of}: the request's token is at"
            f" {self.given}, this process is at {self.current}."
        )

    def row(self) -> dict[str, Any]:
        stream = BY_NAME[self.field].stream if self.field in BY_NAME else ""
        return {
            "field": self.field,
            "writer": self.writer or "all others",
            "token": self.given,
            "this_process": self.current,
            "behind": self.given - self.current,
            "stream": stream,
            "written_by": written_by(stream) if stream else "",
        }


def _pairs(given: SyncToken, current: SyncToken) -> dict[str, tuple[FieldPosition, FieldPosition]]:
    """Return the fields to compare, as Synapse does: all but typing; missing ones count as 0."""
    nothing = FieldPosition(0)
    return {
        name: (position, current.positions.get(name, nothing))
        for name, position in given.positions.items()
        if name not in ("typing", "groups")
    }


def _lagging(pairs: dict[str, tuple[FieldPosition, FieldPosition]]) -> list[_Lag]:
    """Return what is behind, the largest lag first."""
    found = [
        _Lag(name, writer, given.of(writer), current.of(writer))
        for name, (given, current) in pairs.items()
        for writer in current.behind(given)
    ]
    return sorted(found, key=lambda one: one.current - one.given)


def _rows_wait(found: Found, writers: Writers) -> Passage:
    stream, given = found["stream"], int(found["given"])
    writer = printable(found["writer"] or "the writer")
    words = []
    if found["verb"].startswith("Finished"):
        words.append(f"{stream} has reached {given}: the wait for {writer} is over, nothing is wrong.")
        return _passage("caught_up", found, words, [], [])
    has_timed_out = found["verb"] != "W"
    row: dict[str, Any] = {"stream": stream, "writer": writer, "written_up_to": given}
    if found["current"] is None:
        words.append(
            f"{stream} is behind: {writer} has written up to {given}; this line does not tell how far this"
            " process is."
        )
    else:
        current = int(found["current"])
        lag = given - current
        words.append(
            f"{stream} is {lag:,} behind: {writer} has written up to {given}, this process is at {current}."
            if lag > 0
            else f"{stream} has come in the meantime: this process is at {current}, {writer} wrote {given}."
        )
        row |= {"this_process": current, "behind": max(lag, 0)}
    words.append(
        f"After a request to {writer}, this process waited {REPLICATION_WAIT_SECONDS} s for the rows that the"
        " request caused, and went on without them: what it reads until they come may be stale."
        if has_timed_out
        else f"After a request to {writer}, this process waits up to {REPLICATION_WAIT_SECONDS} s for the"
        " rows that the request caused: no error yet."
    )
    words.append(writers_sentence(stream))
    advice = lag_advice([stream]) if has_timed_out else []
    if has_timed_out and stream == "backfill":
        advice.append(
            "where backfill is rare, releases from 1.76 on could get stuck with this"
            " (matrix-org/synapse#15136): update"
        )
    row["written_by"] = written_by(stream)
    return _passage("stuck_request" if has_timed_out else "waiting_request", found, words, advice, [row])


def _empty_sync(found: Found, writers: Writers) -> Passage:
    words = [
        (
            "A /sync got an empty response: this process did not reach the position of the client's token"
            f" within {SYNC_WAIT_SECONDS} s."
        ),
        "The client asks again with the same token, and receives nothing until this process has caught up.",
        "The line does not name the stream.",
    ]
    advice = [
        (
            "paste the line of synapse.notifier before it: since 1.163 it says 'Timed out waiting for this"
            " worker's streams to advance to given token'; older releases say, at level INFO, 'Waiting for"
            " current token to reach'"
        ),
        (
            "if all users see it after a restart or an upgrade, tokens may be ahead of the database:"
            " releases since July 2024 cope with that (element-hq/synapse#17274)"
        ),
    ]
    return _passage("stuck_sync", found, words, advice, [])


def _bounded(found: Found, writers: Writers) -> Passage:
    field = found["field"].lower().removesuffix("_key")
    given, most = read_position(found["given"]), int(found["current"])
    highest = max([given.minimum, *given.ahead.values()])
    words = [
        (
            f"{field} of a client's token is {highest - most:,} ahead of the database: the token is at"
            f" {highest}, but the highest id that was ever given out is {most}."
        ),
        (
            "The database was restored from an older copy, or an old release lost ids at a restart, or the"
            " client made the token up. Synapse goes on from the highest id."
        ),
    ]
    stream = BY_NAME[field].stream if field in BY_NAME else ""
    row = {"field": field, "token": highest, "highest_id": most, "ahead": highest - most, "stream": stream}
    advice = ["see whether sequences and positions fit: synrepl doctor --homeserver HOMESERVER.YAML"]
    return _passage("token_from_future", found, words, advice, [row])


def _to_device_ahead(found: Found, writers: Writers) -> Passage:
    given, current = int(found["given"]), int(found["current"])
    words = [
        (
            f"to_device is {given - current:,} behind: a sliding sync asks for messages after {given}, this"
            f" process is at {current}."
        ),
        "The client gets no to-device messages until this process has caught up.",
        writers_sentence("to_device"),
    ]
    row = {"stream": "to_device", "token": given, "this_process": current, "behind": given - current}
    return _passage("stuck_sync", found, words, lag_advice(["to_device"]), [row])


def _position_ahead(found: Found, writers: Writers) -> Passage:
    stream = found["stream"]
    words = [
        f"A position of {stream} is ahead of what the other side has.",
        "Either this side lags behind the writer, or the other lost ids, as by a restore or a switch-over.",
        writers_sentence(stream),
    ]
    return _passage("position_ahead", found, words, lag_advice([stream]), [])


def _inconsistent(found: Found, writers: Writers) -> Passage:
    sequence = found["sequence"]
    if found["stream"]:
        stored = found["stream"]
        what = f"a stored position of {stored} (table stream_positions)"
    else:
        stored, what = "", f"an id in the table {found['table']}"
    words = [
        f"Synapse refuses to start: the sequence {sequence} is behind {what}.",
        (
            "It would give out ids a second time. PostgreSQL logs sequences 32 values ahead: a switch-over,"
            " a restore or a port of the database can leave this behind."
        ),
    ]
    advice = [
        "find the statement that raises the sequence: synrepl doctor --homeserver HOMESERVER.YAML",
        SEQUENCE_QUERY.format(sequence),
    ]
    if stored:
        advice.append(position_query([stored]))
        advice.append(
            "do not delete the stored positions, as the message proposes: that leaves the sequence behind"
            " tokens that clients and workers have received"
        )
    row = {"sequence": sequence, "behind": stored or found["table"], "stream": _wire_name(stored)}
    return _passage("inconsistent_sequence", found, words, advice, [row])


def _sequence_behind(found: Found, writers: Writers) -> Passage:
    sequence, table = found["sequence"], found["table"]
    current, given = int(found["current"]), int(found["given"])
    words = [
        (
            f"The sequence {sequence} is {given - current:,} behind: it is at {current}, the table {table}"
            f" has {given}."
        ),
        "A release that adds 'Updating sequence.' raises it by itself; an older one refuses to start.",
    ]
    row = {"sequence": sequence, "at": current, "table": table, "highest_id": given}
    advice = ["if Synapse does not start: synrepl doctor --homeserver HOMESERVER.YAML"]
    return _passage("inconsistent_sequence", found, words, advice, [row])


def _wire_name(stored: str) -> str:
    return next((name for name, other in POSITION_NAMES.items() if other == stored), stored)


def _fetching(found: Found, writers: Writers) -> Passage:
    stream, writer = found["stream"], printable(found["writer"] or "its writer")
    current, given = int(found["current"]), int(found["given"])
    words = [
        (
            f"{stream} had a gap of {given - current:,}: this process is at {current}, {writer} announced"
            f" {given}."
        ),
        (
            "It now reads the missing rows from the database or from the writer. That is normal after a start"
            " or a lost connection to Redis; if it comes often, rows are lost on Redis."
        ),
    ]
    row = {"stream": stream, "writer": writer, "this_process": current, "announced": given}
    return _passage("fetching_rows", found, words, [], [row])


def _unknown(found: Found, writers: Writers) -> Passage:
    stream = found["stream"]
    words = [
        f"This process does not know the stream {stream}, and drops its {found['command']}.",
        "The processes run different releases, or something else writes to the same Redis channel.",
    ]
    return _passage("unknown_stream", found, words, ["compare the releases of all processes"], [])


def _lost(found: Found, writers: Writers) -> Passage:
    words = [
        (
            "This process lost its connection to Redis. Until it is back nothing arrives here: /sync on it is"
            " late, caches are stale."
        ),
        "After the connection is back, the process asks for positions, and reads what it missed.",
    ]
    advice = ["look for 'Connected to redis' after this line, and at the log and memory of Redis before it"]
    return _passage("lost_connection", found, words, advice, [])


def _dropped(found: Found, writers: Writers) -> Passage:
    command = found["command"]
    words = [
        f"This process is not connected to Redis, and dropped a {command} that others should have received.",
    ]
    if command == "RDATA":
        words.append("The next POSITION shows the gap, and the others read the rows from the database.")
    return _passage("lost_connection", found, words, ["look at the connection to Redis before this line"], [])


_MESSAGES: Final[dict[re.Pattern[str], Callable[[Found, Writers], Passage]]] = {
    _STREAMS_WAIT: _streams_wait,
    _ROWS_WAIT: _rows_wait,
    _EMPTY_SYNC: _empty_sync,
    _BOUNDED: _bounded,
    _TO_DEVICE_AHEAD: _to_device_ahead,
    _INCONSISTENT: _inconsistent,
    _SEQUENCE_BEHIND: _sequence_behind,
    _FETCHING: _fetching,
    _UNKNOWN: _unknown,
    _LOST: _lost,
    _DROPPED: _dropped,
    _POSITION_AHEAD: _position_ahead,
}


def _passage(
    kind: str, found: Found, words: list[str], advice: list[str], fields: list[dict[str, Any]]
) -> Passage:
    text = printable(" ".join(found.group().split()))
    return Passage(kind=kind, text=text, words=words, advice=advice, fields=fields)
