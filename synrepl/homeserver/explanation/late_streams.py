"""Requests that waited for a stream: joins the wait, what became of it, and the line that ends the delay."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

import msgspec

from synrepl.homeserver.explanation.faults import ReleaseFault, find_fault
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.pasted_lines import Header
from synrepl.homeserver.explanation.results import Passage
from synrepl.html.humanize import span
from synrepl.wire.dialect import parse_release
from synrepl.wire.text import printable

MAX_KEPT: Final = 1000
"""So many waits, failures and ends of a delay are kept: the last ones."""

_K = TypeVar("_K")
_V = TypeVar("_V")

_WAITS: Final = "repl_wait_start"
_COME: Final = "repl_wait_done"
_GAVE_UP: Final = "repl_wait_timeout"
_ANSWERED: Final = "request"
_STARTS: Final = ("start", "start_running", "app_running")
_STARTED: Final = re.compile(
    r"\*{5} STARTING SERVER|Setting up server|Synapse (?:worker )?now listening on ", re.ASCII
)
"""What a process logs when it starts, and not when it reads its files again."""
_FAILED: Final = ("client_request_failed", "client_write_failed", "replication_request_failed")
_DONE: Final = (
    "The process that was asked for it had done its part before the wait began: what seems to have failed, as"
    " a new room, is most likely there."
)
_LOOK: Final = "see whether it is there before it is asked for again: do not create it anew"
_LOAD: Final = (
    "look at the load of this process, of Redis and of the writer of {} at that time; once it is caught up"
    " nothing is to be mended"
)

_NAMED: Final = re.compile(r"aiting for (?:repl )?stream '?(?P<stream>[\w.-]{1,100})", re.ASCII)
_NO_END: Final = (
    "This text has no end of it: neither the line that it is over (Finished waiting for repl stream) nor that"
    " it was given up (Timed out waiting for)."
)


class _Wait(NamedTuple):
    """A line with a stream and a position: that it is waited for, or reached."""

    stream: str
    position: int
    time: str
    line: int


class _Request(NamedTuple):
    """The name of a request, and the process that counted it, if that is known."""

    writer: str
    name: str


_SEVERAL: Final = (
    "The same numbers of requests come again in the text, and no start between: it is of several processes,"
    " or of several starts, and the wait and the failure may be of two."
)


class LateStreams:
    """Keeps who waited for which stream, and when it came."""

    def __init__(self) -> None:
        self._waits: dict[_Request, _Wait] = {}
        self._failed: dict[int, tuple[_Request, str, _Wait]] = {}
        self._ends: dict[int, _Wait] = {}
        self._open: dict[_Request, dict[str, int]] = {}  # lines of waits, by request and stream
        self._answered: dict[str, str] = {}  # times, by request, of a text of which no process is named
        self._is_of_several = False

    def see_pair(self, match: Match, header: Header, writer: str, number: int) -> None:
        """Keep that a wait began, until a line ends it; each line is seen, however many there are.

        Each process counts its requests for itself: `writer` is the one whose line it is, as far as is known.
        """
        key, request = match.message.key, _Request(writer, header.request)
        if key in _STARTS and _STARTED.match(match.text) is not None:
            # It counts from 1 again: what waited before is not what fails now.
            self._answered.clear()
            self._waits = {one: wait for one, wait in self._waits.items() if one.writer != writer}
        if key == _ANSWERED and request.name and not writer:
            # A line that is logged to two places has one time.
            before = self._answered.get(request.name, header.time)
            self._is_of_several = self._is_of_several or before != header.time
            _keep(self._answered, request.name, header.time)
        if key in (*_FAILED, _ANSWERED) and request.name:
            self._open.pop(request, None)
        elif key in (_WAITS, _COME, _GAVE_UP) and (named := _NAMED.search(match.text)):
            streams = self._open.pop(request, {})
            streams.pop(named["stream"], None)
            if key == _WAITS:
                _keep(streams, named["stream"], number)
            if streams:
                _keep(self._open, request, streams)

    def see(
        self,
        match: Match,
        passage: Passage,
        header: Header,
        writer: str,
        number: int,
        exceptions: Sequence[str],
    ) -> None:
        """Keep what a line says of a wait: its begin, a request that failed with it, or its end."""
        key, request = match.message.key, _Request(writer, header.request)
        wait = _wait(passage, header.time, number) if key == _WAITS else None
        if wait is not None and request.name:
            self._waits.pop(request, None)
            _keep(self._waits, request, wait)
        elif key in _FAILED and request in self._waits and any("TimeoutError" in one for one in exceptions):
            _keep(self._failed, number, (request, header.time, self._waits.pop(request)))
        elif key == _COME:
            self._waits.pop(request, None)
        elif key == "caught_up" and len(match.values) >= 2 and match.values[1].isdecimal():
            end = _Wait(match.values[0].strip("'"), int(match.values[1][:20]), header.time, number)
            _keep(self._ends, number, end)

    def told(self, passages: Sequence[Passage]) -> list[Passage]:
        """Say of requests that waited in vain what they waited for, and whether it came."""
        return [self._told_of(one) for one in passages]

    def _told_of(self, passage: Passage) -> Passage:
        if passage.kind == _WAITS:
            return self._with_no_end(passage)
        if passage.kind == _GAVE_UP and passage.count <= len(passage.lines):
            wait = _wait(passage, passage.last_time, passage.lines[-1])
            if wait is None or (end := self._end_of(wait, wait.line)) is None:
                return passage
            words = [*passage.words, _ended(end, passage.last_time)]
            return msgspec.structs.replace(passage, words=words)
        if passage.kind not in _FAILED or passage.count > 1 or passage.lines[0] not in self._failed:
            return passage
        request, time, wait = self._failed[passage.lines[0]]
        stream, name = printable(wait.stream[:100]), printable(request.name[:200])
        passed = _between(wait.time, time)
        cause = (
            f"The request {name} waited for the stream {stream} to reach {wait.position}"
            f" in this process, and gave up{f' after {span(passed)}' if passed else ''}."
        )
        end = self._end_of(wait, passage.lines[0])
        came = _ended(end, time) if end else "This text does not tell whether the stream came later."
        if self._is_of_several and not request.writer:
            came = f"{came} {_SEVERAL}"
        return msgspec.structs.replace(
            passage,
            words=[passage.words[0], f"{cause} {came}", _DONE],
            advice=[_LOOK, _LOAD.format(stream)],
            cause=f"{cause} {came}",
        )

    def _with_no_end(self, passage: Passage) -> Passage:
        """Say of a wait that this text does not tell its end, and what it is where that is known."""
        is_whole = passage.count > len(passage.lines)  # of all waits, of which the first lines are kept
        if (row := _wait(passage, "", 0)) is None:
            return passage
        ongoing = sorted(
            (line, stream)
            for streams in self._open.values()
            for stream, line in streams.items()
            if is_whole or (stream == row.stream and line in passage.lines)
        )
        if not ongoing:
            return passage
        known = [(one, fault) for one in ongoing if (fault := _fault_of(one[1], passage)) is not None]
        (line, named), fault = known[0] if known else (ongoing[0], None)
        if not is_whole and (end := self._end_of(row, line)) is not None:
            return msgspec.structs.replace(passage, words=[*passage.words, _ended(end, passage.last_time)])
        if fault is None:
            return msgspec.structs.replace(passage, words=[*passage.words, _NO_END])
        stream = printable(named)
        first = (
            f"A wait for the stream {stream} has no end in this text (line {line}). If it is given up after"
            f" 5 s each time, and {stream} alone is waited for so long, it is a known fault, and what the"
            " request did is done."
        )
        words = [word for word in passage.words if not word.startswith("This is normal")]
        return msgspec.structs.replace(
            passage,
            words=[first, *words, _NO_END, fault.sentence],
            advice=[
                (
                    f"see how it ends: a line Finished with {stream} after it is normal; none, or Timed out,"
                    " is the fault"
                ),
                *fault.steps,
            ],
            severity="look",
        )

    def _end_of(self, wait: _Wait, line: int) -> _Wait | None:
        return next(
            (
                one
                for one in self._ends.values()
                if one.line > line and one.stream == wait.stream and one.position >= wait.position
            ),
            None,
        )


def _fault_of(stream: str, passage: Passage) -> ReleaseFault | None:
    """Return the known fault of a wait that is given up, if the releases that log this line have it."""
    fault = find_fault([f"Timed out waiting for stream {stream}"], [])
    logged = next((word for word in passage.words if word.startswith("Logged by ")), "")
    found = _RELEASES.findall(logged)
    if fault is None or len(found) != 2 or "and later" in logged:
        return None
    since, last = (parse_release(one) for one in found)
    is_of = parse_release(fault.since) <= since and last < parse_release(fault.until)
    return fault if is_of else None


_RELEASES: Final = re.compile(r"\d+\.\d+(?:\.\d+)?", re.ASCII)
"""The releases in what is said of those that log a line."""


def _keep(kept: dict[_K, _V], key: _K, value: _V) -> None:
    kept[key] = value
    if len(kept) > MAX_KEPT:
        kept.pop(next(iter(kept)))


def _wait(passage: Passage, time: str, line: int) -> _Wait | None:
    """Return what a passage of a wait says, from its table."""
    row = passage.fields[0] if passage.fields else {}
    if "stream" not in row or "written_up_to" not in row:
        return None
    return _Wait(row["stream"], row["written_up_to"], time, line)


def _ended(end: _Wait, since: str) -> str:
    passed = _between(since, end.time)
    after = f", {span(passed)} later" if passed else ""
    return (
        f"Line {end.line} says that this position was reached{after}: replication was late, and is not"
        " broken."
    )


def _between(first: str, last: str) -> float:
    """Return the seconds between two times of a log; 0 if one of them is not known."""
    try:
        passed = datetime.fromisoformat(last.replace(",", ".")) - datetime.fromisoformat(
            first.replace(",", ".")
        )
    except (ValueError, TypeError):
        return 0
    return max(0, passed.total_seconds())
