"""How far a process is behind: its waits for streams, the gaps that it fills, tokens beyond the database."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import (
    INTEGER,
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
from synrepl.homeserver.streams import BY_NAME, lag_advice, writers_sentence, written_by
from synrepl.wire.text import printable

SYNC_WAIT_SECONDS: Final = 10
"""How long a process of Synapse waits for the streams of a client's token (1.109 and later)."""

_STREAM_NAME: Final = r"[\w.-]{1,100}"

_LAGGING: Final = re.compile(
    rf"(?<!\w)(?P<field>[a-z_]{{2,40}}?)(?:_key)? \(at (?P<current>{VALUE}),"
    rf" waiting for (?P<given>{VALUE})\)",
    re.ASCII,
)

_ROWS_WAIT: Final = re.compile(
    rf"(?P<verb>Timed out w|Finished w|W)aiting for repl stream '(?P<stream>{_STREAM_NAME})' to reach"
    rf" (?P<given>{INTEGER})(?: \((?P<writer>[^()\s]{{1,255}})\))?"
    rf"(?:; currently at:? (?P<current>{INTEGER}))?",
    re.ASCII,
)

_BOUNDED: Final = re.compile(
    rf"Bounding token from the future '?(?:StreamKeyType\.)?(?P<field>\w{{2,40}})'?:"
    rf" token: (?P<given>{VALUE}), bound: (?P<current>{INTEGER})",
    re.ASCII,
)

_TO_DEVICE_AHEAD: Final = re.compile(
    rf"Got to-device\.since from the future\. since token: (?P<given>{INTEGER}) is ahead of our current"
    rf" to_device stream position: (?P<current>{INTEGER})",
    re.ASCII,
)


def _streams_wait(match: Match, writers: Writers) -> Passage:
    """Explain the wait of a request for the streams of its token: names the fields that are behind."""
    pairs = {
        one["field"]: (read_position(one["given"]), read_position(one["current"]))
        for one in _LAGGING.finditer(match.text)
    }
    tokens = [token for _, token in find_tokens(match.text, writers)]
    has_timed_out = match.message.key == "stream_wait_timeout"
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
    if has_timed_out and not rows:
        advice.append(match.message.do)
    advice += names_advice(row["writer"] for row in rows if "writer" in row)
    return passage_of(match, words, advice, rows)


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


def _rows_wait(match: Match, writers: Writers) -> Passage | None:
    found = _ROWS_WAIT.search(match.text)
    if found is None:
        return None
    stream, given = found["stream"], int(found["given"])
    writer = printable(found["writer"] or "the writer")
    if match.message.key == "repl_wait_done":
        words = [f"{stream} has reached {given}: the wait for {writer} is over, nothing is wrong."]
        return passage_of(match, words, [], [])
    # Only since 1.76 the message has the writer, and the wait is short.
    seconds = 5 if found["writer"] else 30
    row: dict[str, Any] = {"stream": stream, "writer": writer, "written_up_to": given}
    if found["current"] is None:
        words = [
            (
                f"{stream} is behind: {writer} has written up to {given}; this line does not tell how far"
                " this process is."
            )
        ]
    else:
        current = int(found["current"])
        lag = given - current
        words = [
            f"{stream} is {lag:,} behind: {writer} has written up to {given}, this process is at {current}."
            if lag > 0
            else f"{stream} has come in the meantime: this process is at {current}, {writer} wrote {given}."
        ]
        row |= {"this_process": current, "behind": max(lag, 0)}
    has_timed_out = match.message.key == "repl_wait_timeout"
    words.append(
        f"After a request to {writer}, this process waited {seconds} s for the rows that the"
        " request caused, and went on without them: what it reads until they come may be stale."
        if has_timed_out
        else f"After a request to {writer}, this process waits up to {seconds} s for the"
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
    return passage_of(match, words, advice, [row])


def _bounded(match: Match, writers: Writers) -> Passage | None:
    found = _BOUNDED.search(match.text)
    if found is None:
        return None
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
    return passage_of(match, words, [match.message.do], [row])


def _to_device_ahead(match: Match, writers: Writers) -> Passage | None:
    found = _TO_DEVICE_AHEAD.search(match.text)
    if found is None:
        return None
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
    return passage_of(match, words, lag_advice(["to_device"]), [row])


IN_MEMORY: Final = frozenset(("typing", "presence_federation", "federation"))
"""Streams that are in no table: a process that starts has nothing of them."""


def _fetching(match: Match, writers: Writers) -> Passage:
    stream, *named, first, last = match.values
    writer = printable(named[0] if named else "its writer")
    current, given = int(first), int(last)
    if stream in IN_MEMORY:
        words = [
            f"This process asks {writer} over HTTP for what it has of {stream} from {current} to {given}.",
            (
                f"{stream} is in memory only: a process that starts begins at 0, and asks for the whole span,"
                " piece by piece. Ids are no rows: few of them have one, and nothing is lost."
            ),
        ]
        step = "if it comes often, this process or the writer restarts, or loses the connection: see why"
    elif given < current:
        words = [
            (
                f"{printable(stream)} lacks nothing: this process is at {current}, {current - given:,} beyond"
                f" what {writer} announced, {given}."
            ),
            "Releases before 1.96 ask for rows all the same, whenever the numbers differ: that costs load.",
        ]
        step = "if it comes without end and the load is high: update; 1.96 asks only for what is lacking"
    else:
        words = [
            (
                f"{printable(stream)} had a gap of {given - current:,}: this process is at {current},"
                f" {writer} announced {given}."
            ),
            match.message.means,
        ]
        step = match.message.do
    row = {"stream": printable(stream), "writer": writer, "this_process": current, "announced": given}
    return passage_of(match, words, [step], [row])


_SPAN: Final = re.compile(r" between (?P<given>.+?\)) and (?P<current>.+\))\s*\Z", re.ASCII | re.DOTALL)


def _sync_span(match: Match, writers: Writers) -> Passage | None:
    """Explain the span of an answer to a /sync: what is new in it."""
    found = _SPAN.search(match.text)
    tokens = [find_tokens(found[name], writers) for name in ("given", "current")] if found else []
    if not tokens or not all(tokens):
        return None
    given, current = (one[0][1] for one in tokens)
    news = {
        name: place.minimum - given.positions[name].minimum
        for name, place in current.positions.items()
        if name in given.positions and place != given.positions[name]
    }
    told = "An answer to a /sync: nothing is new."
    if news:
        parts = ", ".join(f"{name} {'+' if moved >= 0 else ''}{moved:,}" for name, moved in news.items())
        told = f"An answer to a /sync: new in it may be {parts} (by their ids; not all are for this user)."
    return passage_of(match, [told], [], [])


DETAILS: Final[Mapping[str, Detail]] = {
    "stream_wait_start": _streams_wait,
    "stream_wait_timeout": _streams_wait,
    "repl_wait_start": _rows_wait,
    "repl_wait_done": _rows_wait,
    "repl_wait_timeout": _rows_wait,
    "token_bounded": _bounded,
    "to_device_ahead": _to_device_ahead,
    "fetching": _fetching,
    "sync_span": _sync_span,
}
"""What explains messages by their values, by the key of the message."""
