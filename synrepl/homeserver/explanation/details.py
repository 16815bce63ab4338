"""What some messages of Synapse's log say beyond their meaning: values compared, who writes, what to look at.

`DETAILS` has them by the key of the message. Docs: docs/howto/explain.md.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from synrepl.caches.unreachable import kept_answer
from synrepl.homeserver.explanation.background_tasks import background_task
from synrepl.homeserver.explanation.duplicates import (
    IN_AN_UPDATE,
    IN_AN_UPGRADE,
    LIKELY_AN_UPGRADE,
    UPDATES,
    is_of_upgrade,
    told_of_duplicate,
)
from synrepl.homeserver.explanation.exceptions import told_of_configuration, told_of_cut, told_of_exception
from synrepl.homeserver.explanation.main_requests import is_of_main
from synrepl.homeserver.explanation.messages import Match, find_message, find_reason
from synrepl.homeserver.explanation.missing_modules import told_of_module
from synrepl.homeserver.explanation.modules import module_of
from synrepl.homeserver.explanation.pasted_lines import REDIS, Header, LoggedText
from synrepl.homeserver.explanation.proxies import told_of_proxy, told_of_state
from synrepl.homeserver.explanation.refused_logins import told_of_login
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.retries import MESSAGES as RETRIES
from synrepl.homeserver.explanation.retries import advice_of
from synrepl.homeserver.explanation.tokens import (
    NUMBERED,
    VALUE,
    FieldPosition,
    SyncToken,
    Writers,
    find_tokens,
    names_advice,
    read_position,
    span_text,
    token_fields,
)
from synrepl.homeserver.explanation.wire_lines import explain_line
from synrepl.homeserver.streams import (
    BY_NAME,
    POSITION_NAMES,
    WRITER_KEYS,
    lag_advice,
    position_query,
    writers_sentence,
    written_by,
)
from synrepl.streams.table import StreamTable
from synrepl.wire.text import printable

SYNC_WAIT_SECONDS: Final = 10
"""How long a process of Synapse waits for the streams of a client's token (1.109 and later)."""

_STREAM_NAME: Final = r"[\w.-]{1,100}"
_INTEGER: Final = r"-?\d{1,19}"

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

SEQUENCE_QUERY: Final = "SELECT last_value, is_called FROM {}"


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
    return _passage(match, words, advice, rows)


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
        return _passage(match, words, [], [])
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
    return _passage(match, words, advice, [row])


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
    return _passage(match, words, [match.message.do], [row])


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
    return _passage(match, words, lag_advice(["to_device"]), [row])


def _inconsistent(match: Match, writers: Writers) -> Passage | None:
    found = _INCONSISTENT.search(match.text)
    if found is None:
        return None
    sequence = found["sequence"]
    stored = found["stream"] or ""
    what = f"a stored position of {stored} (table stream_positions)" if stored else ""
    words = [
        (
            f"Synapse refuses to start: the sequence {sequence} is behind"
            f" {what or 'an id in the table ' + found['table']}."
        ),
        (
            "It would give out ids a second time. PostgreSQL logs sequences 32 values ahead: a switch-over,"
            " a restore or a port of the database can leave this behind."
        ),
    ]
    advice = [match.message.do, SEQUENCE_QUERY.format(sequence)]
    if stored:
        advice.append(position_query([stored]))
        advice.append(
            "do not delete the stored positions, as the message proposes: that leaves the sequence behind"
            " tokens that clients and workers have received"
        )
    row = {"sequence": sequence, "behind": stored or found["table"], "stream": _wire_name(stored)}
    return _passage(match, words, advice, [row])


def _sequence_behind(match: Match, writers: Writers) -> Passage | None:
    found = _SEQUENCE_BEHIND.search(match.text)
    if found is None:
        return None
    sequence, table = found["sequence"], found["table"]
    current, given = int(found["current"]), int(found["given"])
    is_raised = "Updating sequence" in match.text
    words = [
        (
            f"The sequence {sequence} is {given - current:,} behind: it is at {current}, the table {table}"
            f" has {given}."
        ),
        (
            "Synapse raises it by itself (since 1.109)."
            if is_raised
            else "This release does not raise it: Synapse refuses to start (1.21 to 1.108)."
        ),
    ]
    row = {"sequence": sequence, "at": current, "table": table, "highest_id": given}
    return _passage(match, words, [match.message.do], [row])


def _wire_name(stored: str) -> str:
    return next((name for name, other in POSITION_NAMES.items() if other == stored), stored)


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
    return _passage(match, words, [step], [row])


def _upstream(match: Match, writers: Writers) -> Passage | None:
    """Explain that a proxy got no answer: of whom, and where on the way it failed."""
    told = told_of_proxy(match.text)
    return _passage(match, *told, []) if told is not None else None


def _id_twice(match: Match, writers: Writers) -> Passage | None:
    """Explain a row that is there already: by a sequence, or because it was stored twice."""
    told = told_of_duplicate(match.text, match.values[-1])
    if told is None:
        return None
    # In PostgreSQL's own log there is no exception: Synapse may have done without the row.
    is_own = told.is_harmless and "Error" not in match.text and "Violation" not in match.text
    passage = _passage(match, told.words, told.advice or [match.message.do], [])
    return msgspec.structs.replace(passage, severity="look" if is_own else passage.severity)


def _sql(match: Match, writers: Writers) -> Passage | None:
    """Explain a statement of a start, or one that took long."""
    if failed := re.search(
        r"\[(?:SQL|TXN) FAIL\] \{(?P<name>[^}]{1,100})\}\s*(?P<why>.*)", match.text, re.DOTALL
    ):
        told = f"A statement to the database failed, of {printable(failed['name'])}: {_shown(failed['why'])}"
        passage = _passage(match, [told], [], [])
        return msgspec.structs.replace(passage, severity="look")
    seconds = float(match.values[-1]) if match.pattern.literals[-1] == " sec" else 0.0
    if seconds >= 1:
        words = [f"A statement to the database took {seconds:.1f} s."]
        advice = ["the line [SQL] before it, with the same name in braces, has it: EXPLAIN it in psql"]
        return msgspec.structs.replace(_passage(match, words, advice, []), severity="look")
    if "{_load_current_ids" not in match.text:
        return None
    told = "At its start the process reads where a stream is: how far its writers have stored it."
    return _passage(match, [told], [], [])


_OF_TABLE: Final = re.compile(r"\b(?:from|into|update)\s+(?P<table>[a-z_]\w{2,63})", re.ASCII | re.IGNORECASE)


def _pg_duration(match: Match, writers: Writers) -> Passage:
    """Explain how long PostgreSQL took for a statement, and for which table."""
    found = _OF_TABLE.search(match.text)
    where = f" on {found['table']}" if found else ""
    words = [
        f"PostgreSQL took {float(match.values[0]) / 1000:.1f} s for a statement{where}.",
        match.message.means,
    ]
    return _passage(match, words, [match.message.do], [])


_SPAN: Final = re.compile(r" between (?P<given>.+?\)) and (?P<current>.+\))\s*\Z", re.ASCII | re.DOTALL)


def _dropped(match: Match, writers: Writers) -> Passage | None:
    """Explain a command that was dropped, if it is the one that a process without Redis drops too."""
    if "REMOTE_SERVER_UP" not in match.text:
        return None
    words = [
        (
            "Another homeserver is back, and this process cannot tell the others, as it is not connected"
            " to Redis. A homeserver without Redis and workers has no others: there it means nothing."
        ),
        NO_PAUSE,
    ]
    step = (
        "without workers: nothing is to be done but for a flood: see which release runs, and update to"
        " 1.92 or later if it is one of 1.87 to 1.91. With workers: see that Redis runs, and that"
        " Connected to redis follows"
    )
    return _passage(match, words, [step], [])


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
    return _passage(match, [told], [], [])


_DOWN: Final = frozenset(("502", "503", "504", "520", "521", "522", "523", "524", "530"))
"""Answers of a proxy whose server is down (those from 520 on of Cloudflare)."""


_TRANSACTION: Final = re.compile(r"/_matrix/federation/v1/send/[^/\s\"'?]{1,100}", re.ASCII)
"""The path of a transaction: what a homeserver sends to another one."""

NO_PAUSE: Final = (
    "Many of these in a second, from one homeserver to another, are a fault of the sender's Synapse,"
    " 1.87 to 1.90: it tries again without a pause. 1.91 mends that, and 1.92 what is left of it"
    " (matrix-org/synapse#16101, #16156, #16221)."
)
TO_UPDATE: Final = (
    "see which release this process runs: if it is one of 1.87 to 1.91, update to 1.92 or later. Else: one"
    " homeserver is gone, and is asked ever more seldom; all of them: look at this server's way out"
    " (DNS, proxy, firewall)"
)


def _tx_refused(match: Match, code: str) -> Passage:
    """Explain a whole transaction that another homeserver refused."""
    where = {
        "401": "does not accept this server's signature, or the name to which it is sent",
        "403": "does not let this server take part",
        "404": "has no federation at its address any more, as a server that is gone or whose proxy leads"
        " elsewhere",
    }.get(code, "does not take it")
    words = [
        f"Another homeserver (the name in brackets) refused a whole transaction with {code}: it {where}."
    ]
    return _passage(match, [*words, NO_PAUSE], [TO_UPDATE], [])


def _fed_tx_failed(match: Match, writers: Writers) -> Passage | None:
    """Explain a transaction that was not sent: by the answer, or as one that this process did not make."""
    found = re.search(r"Received (\d{3}) response to transaction", match.text, re.ASCII)
    if found is not None:
        code = found[1]
        return _tx_refused(match, code) if code.startswith("4") and code != "429" else None
    if not match.text.endswith("Failed to send transaction"):
        return None
    words = [
        (
            "A transaction for another homeserver (the name in brackets) was not sent, because of the"
            " exception after the line: it failed in this process, and not there. It is tried again"
            " later, and what waits behind it too."
        )
    ]
    return msgspec.structs.replace(
        _passage(match, words, ["read the traceback after it"], []), severity="error"
    )


def _fed_refused(match: Match, writers: Writers) -> Passage | None:
    """Explain a request that another homeserver refused, or that is down there."""
    found = re.search(r"HttpResponseException\([\"'](\d{3})", match.text, re.ASCII)
    if (
        found is not None
        and found[1].startswith("4")
        and found[1] != "429"
        and _TRANSACTION.search(match.text)
    ):
        return _tx_refused(match, found[1])
    if found is not None and found[1] in _DOWN:
        words = [
            (
                f"Another homeserver (the name in brackets) answered with {found[1]}: it, or what is behind"
                " its proxy, is down or too slow. It is asked again later."
            )
        ]
        told = _passage(match, words, ["nothing is to be done here"], [])
        return msgspec.structs.replace(told, severity="normal")
    if found is not None and found[1] == "404":
        words = [
            (
                "Another homeserver (the name in brackets) does not have what it was asked for, as a user or"
                " a room that is gone, or answers nothing of Matrix any more."
            )
        ]
        return _passage(match, words, ["nothing is to be done here"], [])
    if found is None or found[1] not in ("401", "403"):
        return None
    words = [
        (
            f"Another homeserver (the name in brackets) refused a request with {found[1]}: it does not accept"
            " this server's signature, or does not let it take part."
        )
    ]
    advice = [
        (
            "one homeserver: nothing is to be done here. All of them, and only from a worker: its"
            " signing_key_path and server_name must be those of the main process: synrepl inspect --files"
        )
    ]
    if found[1] == "401":
        advice.append(
            "all of them, from each process: they cannot fetch this server's keys, so as to check its"
            " signature: https://federationtester.matrix.org tells; port 8448 or .well-known/matrix/server"
            " must lead to Synapse, and the proxy must not change the path"
        )
    elif "_join/" in match.text or "_knock/" in match.text or "/invite/" in match.text:
        advice.insert(0, "a join, knock or invitation: the rules of the room forbid it to this user")
    return _passage(match, words, advice, [])


def _fetched(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer that Element got."""
    if len(match.values) < 4:
        return None
    code, path = int(match.values[-1]), match.values[1].partition("?")[0]
    after = f" after {int(match.values[2]) / 1000:,.0f} s" if match.values[2].isdigit() else ""
    words = [f"Element asked {_shown(path)}, and got {code}{after}."]
    advice = []
    if code == HTTPStatus.UNAUTHORIZED:
        words.append("The homeserver does not accept its access token any more: not a matter of streams.")
        advice = ["log in again; if tokens expire too soon, look at session_lifetime and refresh tokens"]
    elif code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        advice = ["see the log of the process that answered, or of the proxy, at that time"]
    severity = "look" if code >= HTTPStatus.BAD_REQUEST else "normal"
    return msgspec.structs.replace(_passage(match, words, advice, []), severity=severity)


def _received(match: Match, writers: Writers) -> Passage | None:
    """Explain a request of a worker of the oldest releases, which asked for rows over HTTP."""
    if "/_synapse/replication?" not in match.text:
        return None
    words = [
        (
            "A worker of a release before 0.21 asks for the rows of all streams after the positions in the"
            " address: so far it is in each."
        )
    ]
    fields = [
        {"stream": printable(name), "position": int(place)}
        for name, place in re.findall(r"[?&]([a-z_]{2,40})=(-?\d{1,19})", match.text)
        if name != "timeout"
    ]
    return _passage(match, words, [], fields)


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
    return msgspec.structs.replace(_passage(match, words, [], []), severity="look")


def _login(match: Match, writers: Writers) -> Passage | None:
    """Explain a login that PostgreSQL refused by its words."""
    told = told_of_login(match.text)
    return None if told is None else _passage(match, *told, [])


_NO_SIGNATURE: Final[Mapping[str, tuple[str, str]]] = {
    "Destination mismatch": (
        (
            "Another homeserver sent a request that is addressed to another name than server_name here: it"
            " was refused. Nothing is said of its signature."
        ),
        (
            "of one homeserver: it is wrong there; nothing is to be done here. Of all: compare server_name"
            " with what .well-known/matrix/server and the proxy lead here"
        ),
    ),
    "Missing Authorization headers": (
        (
            "A request to the federation API came without what says who sent it: of no homeserver, or through"
            " a proxy that removes the header Authorization. It was refused."
        ),
        "a browser or a monitor: nothing is to be done. Of homeservers: let the proxy pass Authorization on",
    ),
    "Malformed Authorization header": (
        "A request to the federation API says in no known form who sends it: it was refused.",
        "of one sender: nothing is to be done here. Of all: see whether the proxy changes Authorization",
    ),
}
"""Why a request of another homeserver is refused before its signature is looked at (read in 1.100)."""


def _signature(match: Match, writers: Writers) -> Passage | None:
    """Explain a request of another homeserver that was refused, by its words."""
    found = next((told for text, told in _NO_SIGNATURE.items() if text in match.text), None)
    return None if found is None else _passage(match, [found[0]], [found[1]], [])


def _module(match: Match, writers: Writers) -> Passage | None:
    """Explain a module that Python does not find by its name."""
    told = told_of_module(match.text)
    return None if told is None else _passage(match, *told, [])


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
    return _passage(match, words, advice, [])


_OPTION: Final = re.compile(r"Error in configuration at '(?P<path>[^']{1,200})':\s*(?P<told>.*)", re.DOTALL)


def _option(match: Match, writers: Writers) -> Passage | None:
    """Explain an option that is wrong by its name, and by what Synapse says of it."""
    found = _OPTION.search(match.text)
    if found is None or not found["told"]:
        return None
    option, told = printable(found["path"]), _shown(found["told"])
    words = f"Synapse refuses to start: the option {option} of its configuration is wrong: {told}"
    return _passage(match, [words], [match.message.do], [])


def _tool_unreachable(match: Match, writers: Writers) -> Passage | None:
    """Explain an address that a script did not reach by the protocol."""
    if re.search("WRONG_VERSION_NUMBER|wrong version number|UNKNOWN_PROTOCOL", match.text) is None:
        return None
    words = ["A script speaks TLS (https://) to a port of the homeserver that does not."]
    advice = ["write http:// in place of https:// for that port: behind a proxy Synapse itself has no TLS"]
    return _passage(match, words, advice, [])


_RAISED: Final = re.compile(
    r"\b\w{0,80}(?:Exception|Error)\(u?(?P<quote>['\"])(?P<text>.{1,500}?)(?P=quote)", re.ASCII
)
"""An exception as Python shows it within a text."""


def _remote_error(match: Match, writers: Writers) -> Passage | None:
    """Explain an error of replication over TCP by its text."""
    raised = _RAISED.search(match.text)
    reason = find_message(LoggedText(raised["text"], Header())) if raised else None
    inner = _explained(reason, writers) if reason is not None else None
    if inner is None:
        return None
    return _passage(match, [match.message.means, *inner.words], inner.advice, [])


_ANSWERED: Final = re.compile(
    r"(?:CodeMessageException|HttpResponseException)[:(] ?['\"]?(?P<code>\d{3})", re.ASCII
)


def _not_pushed(passage: Passage, reasons: Sequence["Match | str"]) -> Passage:
    """Explain a push that was refused by the answer, where the exception has it."""
    said = " ".join(one if isinstance(one, str) else one.text for one in reasons)
    found = _ANSWERED.search(f"{passage.text} {said}")
    if found is None:
        return passage
    told = f"The gateway was reached, and answered {found['code']}"
    if re.search(r"<!DOCTYPE|<html", said, re.IGNORECASE):
        told += " with a page for people: a proxy before it (as Cloudflare) refused, and not itself"
    step = "nothing is to be done here unless the gateway is your own: then see its log"
    return msgspec.structs.replace(passage, words=[*passage.words, f"{told}."], advice=[step])


def _connecting(match: Match, writers: Writers) -> Passage | None:
    """Explain an address without a host or a port: the settings that give them are missing."""
    lacking = re.search(r"(host|port)=None|, (None)\)", match.text, re.ASCII)
    if lacking is None:
        return None
    what = lacking[1] or "port"
    words = f"The address of the main process has no {what}: this process cannot connect."
    name = "worker_replication_port" if what == "port" else "worker_replication_host"
    step = (
        f"set {name} in the files of this process, as the main process's listener of the type replication has"
        " it; or let all processes use Redis, which is known since 1.13, and needed from 1.67 on"
    )
    return msgspec.structs.replace(_passage(match, [words], [step], []), severity="error")


_REPLICATION_HOST: Final = re.compile(r"https?://([^/\s]{1,300})/_synapse/replication/", re.ASCII)
_NO_PORT: Final = re.compile(r"not ['\"]?([^\s'\"]{1,300})", re.ASCII)
SET_PORT: Final = (
    "set worker_replication_http_port in the file of this process, the port of the main process' listener"
    " with the resource replication; from 1.84 on host and port of each process are in instance_map"
)
SET_NAME: Final = (
    "give that process a host name in place of the address (localhost for ::1): this release puts it into the"
    " URL as it is"
)


def _slips(address: str) -> tuple[list[str], list[str]]:
    """Say what is wrong in the address of another process, as far as a URL shows it."""
    words, advice = [], []
    host, _, port = address.rpartition(":")
    if port == "None":
        words.append("The address of that process has no port (None): it is not set.")
        advice.append(SET_PORT)
    if ":" in host and not host.endswith("]"):
        words.append("Its host is an IPv6 address without brackets, which is no host of a URL.")
        advice.append(SET_NAME)
    return words, advice


def _not_sent(match: Match, writers: Writers) -> Passage | None:
    """Explain a request to another process by its URL."""
    found = _REPLICATION_HOST.search(match.text)
    words, advice = _slips(found[1]) if found else ([], [])
    if "URLParseError" in match.text:
        words.insert(0, "A request to another process of the homeserver was not sent: its URL is not valid.")
    elif words:
        words.insert(0, match.meanings[0])
    return _passage(match, words, advice or [match.message.do], []) if words else None


def _url(match: Match, writers: Writers) -> Passage | None:
    """Explain a URL that cannot be read by what stands where its port should be."""
    found = _NO_PORT.search(match.text)
    # The host ends at its first colon for who reads it.
    words, advice = _slips(f":{found[1]}" if ":" in found[1] else f"h:{found[1]}") if found else ([], [])
    return _passage(match, [match.meanings[0], *words], advice, []) if words else None


OF_REDIS: Final = "synapse.replication.tcp.redis"
"""The logger of Synapse's client of Redis."""


def of_redis_client(passage: Passage, logger: str) -> Passage:
    """What a failed lookup means for the client of Redis, which asks for addresses of IPv4 alone."""
    if passage.kind != "address_none" or logger != OF_REDIS:
        return passage
    found = re.search(r"lookup failed: ([\w.-]{1,255}?)\.?(?=$|\s)", passage.text, re.ASCII)
    name = found[1] if found else "NAME"
    words = (
        "That name has no IPv4 address here, or the lookup took too long. Synapse's client of Redis asks for"
        " addresses of IPv4 (A) alone: a name with AAAA alone fails."
    )
    step = (
        "see whether the name is right, and has such an address in this container: getent ahostsv4"
        f" {name}. Without any, set redis.host to a name with one, or to the IPv6 address itself"
    )
    return msgspec.structs.replace(passage, words=[words], advice=[step])


def _asked(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer that is an error, of whoever was asked."""
    code = match.values[-1]
    if not code.isdigit() or int(code) < HTTPStatus.BAD_REQUEST:
        return None
    if int(code) == HTTPStatus.NOT_FOUND and " PUT " in match.text and _asks_old_path(match.text):
        words = ["An application service answered with 404.", _OLD_PATH[0]]
        return msgspec.structs.replace(_passage(match, words, [_OLD_PATH[1]], []), severity="look")
    words = [f"Who was asked, at the address in the line, answered with an error, {code}."]
    advice = ["see the log of that service at that time; for 502 to 504, of the proxy before it"]
    return msgspec.structs.replace(_passage(match, words, advice, []), severity="look")


def _task(match: Match, writers: Writers) -> Passage | None:
    """Explain a task in the background that failed by what it does."""
    task = background_task(match.values[0])
    if task is None:
        return None
    name = printable(match.values[0])
    words = [f"A task in the background failed: {name}, which {task.does}. {task.missing}"]
    severity = "look" if task.is_minor else match.message.severity
    return msgspec.structs.replace(_passage(match, words, [match.message.do], []), severity=severity)


def _there_already(match: Match, writers: Writers) -> Passage | None:
    """Explain what is there already by who says so."""
    if "Error" in match.text or "Duplicate" in match.text:
        return None
    words = [
        match.message.means,
        "In PostgreSQL's own log alone, while Synapse starts and serves, that is no trouble.",
    ]
    return msgspec.structs.replace(_passage(match, words, [match.message.do], []), severity="look")


def _answered(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer that is an error."""
    code = int(match.values[-1])
    if code < HTTPStatus.BAD_REQUEST:
        return None
    words = [f"Another process of the homeserver answered a request of this one with an error, {code}."]
    advice = ["the log of that process has the reason, at the same time and with the same path"]
    return msgspec.structs.replace(_passage(match, words, advice, []), severity="look")


WRITTEN_BY: Final[Mapping[str, str]] = {
    "ReceiptRestServlet": "receipts",
    "ReadMarkerRestServlet": "receipts",
    "RoomTypingRestServlet": "typing",
    "SendToDeviceRestServlet": "to_device",
    "PushRuleRestServlet": "push_rules",
}
"""The stream of requests of clients that only its writers take, by the class that handles them."""


TO_WRITERS: Final = (
    "have the proxy send these requests to the processes of `stream_writers`: {}, or to the main process if"
    " that key is missing"
)


def _write_failed(match: Match, writers: Writers) -> Passage | None:
    name = match.pattern.literals[0].split("'")[1]
    stream = WRITTEN_BY[name]
    told = (
        f"If that is an AssertionError, or says that this is no writer: only processes that write {stream}"
        " take such requests, and this one does not."
    )
    return _passage(match, [match.message.means, told], [TO_WRITERS.format(stream)], [])


_NOT_ON_WORKER: Final = re.compile(
    r"Cannot handle (?P<method>[A-Z]{3,7}|\{\w*\}|%s) /(?P<path>\S{1,200}) on worker", re.ASCII
)
_NOT_WRITER: Final = re.compile(
    r"_can_write_to_(\w{1,40})|_can_persist_(presence)|that is not (\w{1,40}) writer", re.ASCII
)
"""Words of a process that does not write a stream."""
_WRITTEN: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "push_rules": (
        "PUT and DELETE",
        "^/_matrix/client/(api/v1|r0|v3|unstable)/pushrules/",
        "from 1.105 on to the process in `stream_writers`: push_rules",
        "GET may stay with workers",
    ),
}
"""Paths of which a worker refuses what writes: methods, path, where else it may go, and what need not."""


def _not_on_worker(match: Match, writers: Writers) -> Passage | None:
    """Explain a path that a worker does not take with that method, or a stream that it does not write."""
    found = _NOT_ON_WORKER.search(match.text)
    if found is None:
        named = _NOT_WRITER.search(match.text)
        stream = next((one for one in named.groups() if one), "") if named else ""
        stream = "to_device" if stream == "device" else stream
        if stream not in WRITER_KEYS:
            return None
        return _passage(
            match, [match.message.means, writers_sentence(stream)], [TO_WRITERS.format(stream)], []
        )
    method, path = found["method"], printable(found["path"].strip("/"))
    is_named = method.isalpha()
    first = (
        f"This worker does not take {method if is_named else 'requests'} of /{path}: only the main process,"
        " or the process that writes what it changes, does."
    )
    methods, where, other, rest = _WRITTEN.get(
        path, (method if is_named else "what", "that path", "", "other methods of it may stay with workers")
    )
    also = f", or {other}" if other else ""
    step = f"have the proxy send {methods} of {where} to the main process{also}. {rest}"
    return _passage(match, [first], [step], [])


def _unknown(match: Match, writers: Writers) -> Passage | None:
    """Explain a stream that a process does not know; None for a word that is no stream."""
    name = match.values[-1].strip("'\" ")
    stream = STREAMS.get(name)
    is_key = match.message.key == "unknown_stream_position"
    # A KeyError may be of anything else that has the name of a stream, if all releases have that stream.
    if is_key and (stream is None or stream.span.since < (1, 13, 0)):
        return None
    words = [f"This process does not know the stream {printable(name)}.", match.message.means]
    if stream is not None:
        words.append(f"Synapse has the stream {name} {stream.span}.")
    else:
        words.append(writers_sentence(printable(name)))
    return _passage(match, words, [match.message.do], [])


STREAMS: Final = StreamTable.default()

_OF_HTTP: Final = (
    (
        r"HTTP/\d",
        "An HTTP server answers at the address to which this process connects for replication over TCP.",
        (
            "worker_replication_port must be that of the listener with `type: replication`;"
            " worker_replication_http_port is the one for HTTP"
        ),
    ),
    (
        r"(?:GET|POST|PUT|HEAD|OPTIONS)\Z",
        "A client of HTTP came to the port of replication over TCP.",
        (
            "see whether a worker has worker_replication_http_port at this port, which is"
            " worker_replication_port; a health check or a scanner does so too"
        ),
    ),
    (
        r"[\w-]{1,80}:\Z|<",
        "This is a line of HTTP, and none of replication: a port was mistaken for another.",
        "the first such line tells which side speaks HTTP: HTTP/1.1 is the server's, GET or POST a client's",
    ),
)
"""What HTTP is, line by line, where commands are expected: a pattern, what it tells, and what to do."""


def _invalid_command(match: Match, writers: Writers) -> Passage | None:
    """Explain a command that is HTTP, and so tells that a port was mistaken for another."""
    for pattern, told, step in _OF_HTTP:
        if re.match(pattern, match.values[-1], re.ASCII):
            return _passage(match, [told], [step], [])
    return None


_NO_ANSWER: Final = (
    "A proxy before it got no answer of the service, or none in time.",
    (
        "see whether the service runs, its load, and its log at that time; events wait and come in order"
        " afterwards"
    ),
)

_TOO_LATE: Final = (
    (
        "It gave no answer in the time that Synapse waits (60 s): the same transaction is sent again, so"
        " that what the service did already it does once more, and all later events wait."
    ),
    (
        "let the service answer at once, and do its work afterwards; see its log at that time for what"
        " it waits for. By the number in the path it must know a transaction that it has had"
    ),
)
"""What it means that an application service did not answer, and what to do."""

_OLD_PATH: Final = (
    (
        "Synapse asked the old path, /transactions/, which newer services (as mautrix') do not have: releases"
        " before 1.81 know no other. From 1.81 on /_matrix/app/v1/transactions/ is asked first, and the"
        " old one only where that is not known."
    ),
    (
        "update Synapse to 1.81 or later. If it is: the service takes neither path, so see whether url in the"
        " registration is its own"
    ),
)
"""What a 404 at the old path tells, and what to do."""

_NOT_ACCEPTED: Final = (
    "It does not accept who asks.",
    (
        "compare hs_token in its file and in Synapse's. If they are the same: services that look for it in"
        " the URL alone need use_appservice_legacy_authorization: true, since 1.90"
    ),
)

AS_ANSWERS: Final[Mapping[int, tuple[str, str]]] = {
    HTTPStatus.BAD_GATEWAY: _NO_ANSWER,
    HTTPStatus.SERVICE_UNAVAILABLE: _NO_ANSWER,
    HTTPStatus.GATEWAY_TIMEOUT: _NO_ANSWER,
    HTTPStatus.UNAUTHORIZED: _NOT_ACCEPTED,
    HTTPStatus.FORBIDDEN: _NOT_ACCEPTED,
    HTTPStatus.NOT_FOUND: (
        "Who answers there does not know the path: another server, perhaps Synapse itself, or an old one.",
        "see whether url in the registration is that of the service and not of Synapse",
    ),
}
"""What answers of an application service tell, and what to do."""


def _asks_old_path(text: str) -> bool:
    """Whether an application service was asked at the path that only old ones have."""
    return "/transactions/" in text and "/_matrix/app/" not in text


def _as_answer(match: Match, writers: Writers) -> Passage | None:
    """Explain the answer of an application service by its status, or that it is no JSON."""
    if "Expecting value" in match.text:
        told = "It answered with what is no JSON, so that Synapse does not take the transaction for received."
        step = (
            "see who answers at its url: the service itself must answer {} (an older version may answer with"
            " nothing: update it), and no page of a proxy or of another program"
        )
        return _passage(match, [match.message.means, told], [step], [])
    if "CancelledError" in match.text or "TimeoutError" in match.text:
        return _passage(match, [match.message.means, _TOO_LATE[0]], [_TOO_LATE[1]], [])
    code = next((int(value) for value in match.values if value.isdigit()), 0)
    if code not in AS_ANSWERS:
        return None
    told, step = AS_ANSWERS[HTTPStatus(code)]
    if code == HTTPStatus.NOT_FOUND and _asks_old_path(match.text):
        told, step = _OLD_PATH
    return _passage(match, [match.message.means, told], [step], [])


def _schema(match: Match, writers: Writers) -> Passage | None:
    """Explain a schema that is newer than a process: the message speaks of older ones."""
    versions = [int(one) for one in match.values if one.isdigit()]
    if len(versions) != 2 or versions[0] >= versions[1]:
        return None
    words = (
        f"The schema of the database ({versions[1]}) is newer than the release of this process"
        f" ({versions[0]}), which refuses to start."
    )
    return _passage(
        match, [words], ["start this process with the release that the main process has or had"], []
    )


def _with_line(match: Match, writers: Writers) -> Passage | None:
    """Explain the line of the protocol that a message is about."""
    found = re.search(r"b?(?P<quote>['\"])(?P<line>[A-Z_]{4,40} .*)(?P=quote)", match.text, re.DOTALL)
    inner = explain_line(found["line"]) if found else None
    if inner is None:
        return None
    return _passage(match, [match.message.means, *inner.words], [match.message.do], inner.fields)


_REQUEST: Final = re.compile(
    r"Processed request: (?P<time>[\d.]{1,20})sec(?:/-?(?P<sending>[\d.]{1,20})sec)? .{0,200}?B!?"
    r' (?P<code>\d{3})!? "(?P<method>[A-Z]{1,10}) (?P<path>/[^\s?"]{0,500})',
    re.ASCII | re.DOTALL,
)

RESOURCES: Final = (
    ("/_synapse/replication/", "replication"),
    ("/_matrix/client/v1/media/", "client, in a process that has the media repository"),
    ("/_matrix/federation/v1/media/", "federation, in a process that has the media repository"),
    ("/_matrix/client/", "client"),
    ("/_matrix/media/", "media"),
    ("/_matrix/federation/", "federation"),
    ("/_matrix/key/", "keys (or federation)"),
    ("/_synapse/", "client"),
)
"""The resource that a listener must have (`names`) for requests with this beginning of a path."""

WRITES: Final = (
    ("/receipt/", "receipts"),
    ("/read_markers", "receipts"),
    ("/typing/", "typing"),
    ("/sendToDevice/", "to_device"),
    ("/account_data/", "account_data"),
    ("/presence/", "presence"),
    ("/pushrules/", "push_rules"),
)
"""The stream to which requests with this part of a path write, of which only its writers take them."""

SLOW_SECONDS: Final = 10
"""A request between processes that takes longer than this many seconds is reported as slow."""


def _request(match: Match, writers: Writers) -> Passage | None:
    """Explain a request as Synapse logged it."""
    found = _REQUEST.search(match.text)
    if found is None:
        words = ["A request was answered; the line was cut off before it tells which, and how."]
        return msgspec.structs.replace(_passage(match, words, [], []), severity="normal")
    seconds = max(float(found[name].rstrip(".")) for name in ("time", "sending") if found[name])
    return _answer(match, int(found["code"]), found["method"], found["path"], seconds)


def _proxied(match: Match, writers: Writers) -> Passage | None:
    """Explain a request as nginx or HAProxy logged it."""
    found = re.search(
        r'"(?P<method>[A-Z]{1,10}) (?P<path>/_(?:matrix|synapse)/[^\s?"]{0,500})', match.text, re.ASCII
    )
    if (state := told_of_state(match.text)) is not None:
        words, advice, is_minor = state
        passage = _passage(match, words, advice, [])
        return msgspec.structs.replace(passage, severity="normal") if is_minor else passage
    said = re.search(r"(?:\A|\s)(-?\d{1,3}) \+?\d{1,12} - - ", match.text, re.ASCII)
    code = said[1] if said else match.values[-1] if match.pattern.literals[0] else match.values[0]
    return _answer(match, int(code), found["method"], found["path"], 0.0) if found is not None else None


OF_MAIN: Final = (
    "Only the main process takes that path with that method (read in 1.85 to 1.163): a worker answers with"
    " 404 or 405 and M_UNRECOGNIZED. If this is the main process, what was asked for is not there."
)
TO_MAIN: Final = "if this is a worker: have the proxy send that method of that path to the main process"


def _client_refused(match: Match, writers: Writers) -> Passage | None:
    """Explain a request that the process does not take, if only the main process takes it."""
    found = re.search(r"method='([A-Z]{1,10})' uri='(/[^\s'?]{0,500})", match.text, re.ASCII)
    if found is None or "Unrecognized request" not in match.text or not is_of_main(found[1], found[2]):
        return _refused(match)
    what = f"This process does not take {found[1]} {_shown(found[2])}."
    return _passage(match, [what, OF_MAIN], [TO_MAIN], [])


def _refused(match: Match) -> Passage | None:
    """Explain a request that was refused, or failed, by its status."""
    *_, code, told = match.values
    if not re.fullmatch(r"[45]\d\d", code):
        return None
    # What is known of the reason is told after it.
    why = "." if find_reason(told) else f": {_shown(told)}"
    if code.startswith("4"):
        words = f"A request was refused with {code}, which is a matter of who asked{why}"
        return _passage(match, [words], [], [])
    words = f"A request could not be answered ({code}){why}"
    return _passage(match, [words], ["see what was logged before with the same request, as in GET-17"], [])


def _answer(match: Match, code: int, method: str, path: str, seconds: float) -> Passage | None:
    """Explain a request that was refused or failed, or was slow between processes; None for all others."""
    is_internal = path.startswith("/_synapse/replication/")
    resource = next((one for start, one in RESOURCES if path.startswith(start)), "")
    whose = "Another process of the homeserver asked this one" if is_internal else "A request came"
    # Each transaction has a number of its own.
    shown = "/_matrix/federation/v1/send/..." if _TRANSACTION.match(path) else _shown(path)
    what = f"{whose}: {method} {shown}, answered with {code}"
    if is_internal and code < HTTPStatus.BAD_REQUEST:
        if seconds < SLOW_SECONDS:
            return msgspec.structs.replace(_passage(match, [f"{what}."], [], []), severity="normal")
        words = [
            (
                f"{what} after {seconds:.0f} s: this process was busy, or waited for something, as the"
                " database or another homeserver."
            )
        ]
        advice = ["look at its load, and at what it logged in that time with the same request"]
    elif is_internal and code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        words = [f"{what}: they do not have the same worker_replication_secret."]
        advice = ["compare it in the files of all processes: synrepl inspect --files"]
    elif (
        HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR
        and code != HTTPStatus.TOO_MANY_REQUESTS
        and _TRANSACTION.match(path)
    ):
        words, advice = _tx_received(match.text, what, code)
    elif code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) and is_of_main(method, path):
        words = [f"{what}.", OF_MAIN]
        advice = [TO_MAIN]
    elif code == HTTPStatus.NOT_FOUND and resource:
        words = [
            f"{what}.",
            (
                "Either no listener of the process has that path, or what was asked for is not there: the"
                " line does not tell which. M_UNRECOGNIZED in the answer means the first."
            ),
        ]
        advice = [
            (
                f"see whether the listener of this port has the resource {resource}, and whether this kind of"
                " process takes that path (https://element-hq.github.io/synapse/latest/workers.html); if not,"
                " have the proxy send it elsewhere"
            )
        ]
        if resource == "federation" and "Processed request" not in match.text:
            advice.insert(
                0,
                "if Synapse's own log has nothing of it, the proxy answered: have it send /_matrix/federation"
                " and /_matrix/key of that name and port to Synapse, or let .well-known/matrix/server (or the"
                " SRV record) name the port where they are; https://federationtester.matrix.org tells",
            )
    elif code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        words = [f"{what}: it failed, or was not answered."]
        advice = [
            (
                "see what the process logged before with the same request, as in GET-17: it has the"
                " exception. For 502 to 504 of a proxy: whether the process runs"
            )
        ]
        stream = next((one for part, one in WRITES if part in path), "")
        if stream and method != "GET":
            words.append(f"Only processes that write {stream} take such requests.")
            advice.append(
                f"see whether it went to one that `stream_writers`: {stream} names, or to the main process if"
                " that key is missing: synrepl inspect --files"
            )
    elif "Processed request" not in match.text:
        return None
    else:
        return _answered_well(match, what, path, seconds)
    return _passage(match, words, advice, [])


_SENDER: Final = re.compile(r"\bSynapse/(?P<major>\d{1,3})\.(?P<minor>\d{1,4})", re.ASCII)


def _tx_received(text: str, what: str, code: int) -> tuple[list[str], list[str]]:
    """Explain a transaction of another homeserver that was refused here."""
    sender = _SENDER.search(text)
    release = (int(sender["major"]), int(sender["minor"])) if sender else None
    whose = (
        f"Its sender runs Synapse {release[0]}.{release[1]}, which"
        if release
        else "A sender with 1.87 to 1.90"
    )
    words = [f"{what}: another homeserver sent a transaction, and was refused."]
    advice = []
    if code == HTTPStatus.NOT_FOUND:
        words.append("A 404 there says that the path does not get to a process with federation.")
        advice.append(
            "if this server is to federate: have the proxy send /_matrix/federation/ to Synapse, to a"
            " listener with the resource federation"
        )
    elif code == HTTPStatus.UNAUTHORIZED:
        words.append("A 401 refuses who sends: the signature, or the name to which it is addressed.")
        advice.append(
            "see the reason in Synapse's own log (authenticate_request failed: ...): Destination"
            " mismatch is a name that is not server_name here. Of one homeserver: it is wrong there"
        )
    if release is None or (1, 87) <= release < (1, 91):
        words.append(
            f"{whose} tries again without a pause, a fault that 1.91 mends (matrix-org/synapse#16101)."
        )
        advice.append(
            "a flood of it: tell the administrator of that homeserver to update, or refuse its address"
            " at the proxy"
        )
    return words, advice


def _answered_well(match: Match, what: str, path: str, seconds: float) -> Passage:
    """Explain a request that was answered: a /sync by how long it waited."""
    severity, advice, words = "normal", list[str](), ["A request was answered."]
    if path.endswith("/sync"):
        found = re.search(r"[?&]timeout=(\d{1,9})", match.text, re.ASCII)
        waits = int(found[1]) / 1000 if found else 0
        if seconds > waits + SLOW_SECONDS:
            severity = "look"
            words = [
                (
                    f"A /sync took {seconds:.0f} s, though its client wanted to wait {waits:.0f} s at most:"
                    " there was much to answer, or the process or the database was busy."
                )
            ]
            advice = [
                (
                    "after a pause, or for a new client: common. Always: look at its load, and"
                    " send /sync to workers of their own"
                )
            ]
        else:
            words = ["A /sync was answered: at once with what was new, or after a wait for it."]
    elif " 200!" in match.text or " 499" in match.text:
        words = ["A request was answered, though its client had gone away."]
    return msgspec.structs.replace(_passage(match, words, advice, []), severity=severity)


def _instance(match: Match, writers: Writers) -> Passage | None:
    """Explain the name of a process that is none of its own."""
    name = match.values[-1].strip()
    if not name.startswith("synapse.app."):
        return None
    words = (
        f"This process has no worker_name: its name is {printable(name)}, as is that of every other without"
        " one."
    )
    step = "set worker_name in its file, as instance_map, stream_writers and the lists of instances have it"
    return msgspec.structs.replace(_passage(match, [words], [step], []), severity="look")


_TLS_PORT: Final = re.compile(r":6380\b")


def _redis_place(match: Match, writers: Writers) -> Passage | None:
    """Explain that Redis was lost, or did not answer, at a port that is mostly one of TLS."""
    if _TLS_PORT.search(match.text) is None:
        return None
    words = [match.message.means, "The port 6380 is by custom that of Redis with TLS, as at Azure."]
    step = (
        "set `redis: {use_tls: true}` (since 1.84; with ca_file if its authority is no public one): without"
        " TLS such a port takes the connection, answers nothing, and ends it"
    )
    return _passage(match, words, [step, match.message.do], [])


def _kept_answer(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer out of a response cache: how long it is kept, and what ends that."""
    said = kept_answer(match.values[0])
    if not said:
        return None
    words = [match.message.means, f"It is {said}."]
    step = (
        "if the answer is stale: wait for that, or ask otherwise (another timeout or filter); no row drops it"
    )
    return _passage(match, words, [step] if "kept for" in said else [], [])


NOT_BY_DATA: Final = frozenset(("unknown_stream_position", "request", "proxy_request"))
"""Messages of which only some values tell something."""

DETAILS: Final[Mapping[str, Callable[[Match, Writers], Passage | None]]] = {
    "stream_wait_start": _streams_wait,
    "stream_wait_timeout": _streams_wait,
    "repl_wait_start": _rows_wait,
    "repl_wait_done": _rows_wait,
    "repl_wait_timeout": _rows_wait,
    "token_bounded": _bounded,
    "to_device_ahead": _to_device_ahead,
    "sequence_table": _inconsistent,
    "sequence_position": _inconsistent,
    "sequence_behind": _sequence_behind,
    "fetching": _fetching,
    "db_old_worker": _schema,
    "tcp_client_connect": _connecting,
    "http_answered": _answered,
    "http_request": _asked,
    "background_task_failed": _task,
    "db_there_already": _there_already,
    "http_failed": _not_sent,
    "url_invalid": _url,
    "client_write_failed": _write_failed,
    "not_writer": _not_on_worker,
    "unknown_stream": _unknown,
    "unknown_stream_position": _unknown,
    "redis_bad_line": _with_line,
    "redis_lost": _redis_place,
    "redis_failed": _redis_place,
    "tcp_bad_line": _with_line,
    "tcp_invalid_command": _invalid_command,
    "as_push_failed": _as_answer,
    "request": _request,
    "proxy_request": _proxied,
    "start_name": _instance,
    "proxy_upstream": _upstream,
    "id_twice": _id_twice,
    "no_row": _no_row,
    "cfg_error": _option,
    "tool_unreachable": _tool_unreachable,
    "tcp_remote_error": _remote_error,
    "sql_debug": _sql,
    "txn_debug": _sql,
    "command_dropped": _dropped,
    "sync_span": _sync_span,
    "pg_duration": _pg_duration,
    "deadlock": _deadlock,
    "db_password": _login,
    "fed_signature": _signature,
    "module_missing": _module,
    "fed_request_failed": _fed_refused,
    "fed_tx_failed": _fed_tx_failed,
    "client_refused": _client_refused,
    "client_fetch": _fetched,
    "request_received": _received,
    "response_cached": _kept_answer,
}
"""What explains a message by its values; None: what the data says is all."""


def _in_place(passage: Passage, frames: Sequence[str], key: str = "", *, is_start: bool = False) -> Passage:
    """Say what a reason means where it ended an update of the database, at the start or in the background."""
    told: tuple[str, str] | None = None
    if passage.kind == "does_not_fit":
        told = told_of_configuration(frames) or (
            told_of_exception("TypeError", frames) if frames and _OF_VALUE.search(passage.text) else None
        )
    if key == "update_failed" or UPDATES in frames:
        told = IN_AN_UPDATE.get(passage.kind)
    elif is_of_upgrade(passage.text, frames):
        told = IN_AN_UPGRADE.get(passage.kind)
    elif is_start and _OF_ALL_TRANSACTIONS.issuperset(frames) and passage.kind in IN_AN_UPGRADE:
        likely = IN_AN_UPGRADE[passage.kind]
        told = (f"{LIKELY_AN_UPGRADE} {likely[0]}", likely[1])
    if told is None:
        return passage
    return msgspec.structs.replace(passage, words=[told[0]], advice=[told[1]])


_OF_STARTS: Final = frozenset(("startup_failed", "start_refused"))
"""Messages of a start that failed, with the exception below them."""
_SAYS_WRITERS: Final = frozenset(("not_writer", "wrong_role"))
"""Reasons that tell of a request that came to a process which does not write its stream."""


def explain_message(
    match: Match,
    writers: Writers,
    reasons: Sequence[Match | str] = (),
    frames: Sequence[str] = (),
    *,
    is_cut: bool = False,
    is_start: bool = False,
) -> Passage | None:
    """Explain a message by its data, by its values where they say more, and by what it gives as the reason.

    `reasons` and `frames` are of the traceback after it, of which the end is missing if it `is_cut`;
    `is_start`: it ended a start. None if its text is, by its values, another message.
    """
    passage = _explained(match, writers)
    if passage is None:
        return None
    passage = _in_place(passage, frames, is_start=is_start)
    if passage.kind == "update_failed" and (update := _unknown_update(match.text, reasons, frames)):
        return _not_known(passage, update)
    if passage.kind == "client_write_failed" and _is_of_no_writer(reasons):
        passage = msgspec.structs.replace(passage, words=[REQUEST_FAILED], advice=[])
    if passage.severity != "normal":
        is_start = is_start or passage.kind in _OF_STARTS
        passage = _with_reasons(passage, match, writers, reasons, frames, is_start=is_start)
        if passage.kind in TO_OTHERS:
            passage = _of_others(passage, match, reasons)
        lacking = next((one for one in reasons if isinstance(one, Match) and one.message.key == LACKS), None)
        if lacking is not None and match.message.logger == _SERVED:
            request = failed_request(match) or "requests as this one"
            passage = to_main(passage, request, step=lacking.message.do)
        if passage.kind in RETRIES and match.values:
            passage = msgspec.structs.replace(passage, advice=advice_of(match.values[0], passage.advice))
        if passage.kind == "push_unreachable":
            passage = _not_pushed(passage, reasons)
        if not passage.cause:
            passage = _with_frames(passage, frames, is_cut=is_cut)
    words = list(passage.words)
    if passage.severity == "normal" and not any("normal" in word for word in words):
        words.append("This is normal.")
    if match.spans and not match.is_cut:
        words.append(f"Logged by {', and '.join(span_text(one.since, one.until) for one in match.spans)}.")
    return msgspec.structs.replace(passage, words=words)


TO_OTHERS: Final = frozenset(
    (
        "fed_request_failed",
        "fed_request_failed_old",
        "fed_request_said",
        "fed_tx_failed",
        "fed_tx_failed_old",
        "fed_connect_failed",
        "fed_event_not_sent",
        "fed_ask_failed",
        "key_lookup",
        "device_resync",
    )
)
"""Messages of requests to other homeservers that failed."""

_OF_VALUE: Final = re.compile(r"'(?:NoneType|dict|list|str|int|bool|tuple|coroutine)' object|NoneType")
"""An object that is no part of a program: a value is another than was expected, and no package is."""

_UNREACHED: Final = {
    "refused": "nothing listens at its address, or a firewall says so",
    "no_route": (
        "there is no way through the network to its address (as from a host with IPv6 alone to a server with"
        " IPv4 alone, or the other way round)"
    ),
    "timed_out": "it did not answer in time",
    "address_none": "its name has no address, or the lookup took too long",
    "tls": "its certificate was not accepted, or it does not speak TLS there",
    "given_up": "it took the connection and gave no answer in time (a minute)",
    "closed_between": "it, or something between, closed the connection without an answer",
    "asked_bad_gateway": "a proxy answered for it, as it is down or too slow",
    "fed_not_retried": "it did not answer before, and is not asked again yet",
}
"""How another homeserver is not reached, by the reason in the line or in the traceback."""


def _of_others(passage: Passage, match: Match, reasons: Sequence[Match | str]) -> Passage:
    """Explain why another homeserver was not reached: a matter of its own addresses, not of this server's."""
    named = find_reason(match.text[len(match.pattern.literals[0]) :])
    known = [one.message.key for one in (named, *reasons) if isinstance(one, Match)]
    why = [_UNREACHED[key] for key in dict.fromkeys(known) if key in _UNREACHED]
    if not why or len(why) < len(set(known)) or any(isinstance(one, str) for one in reasons):
        return passage
    reached = f"It was not reached: {'; '.join(why)}. That is normal, and it is asked again later."
    words = [match.meanings[0], reached]
    advice = [match.message.do]
    return msgspec.structs.replace(passage, severity="normal", words=words, advice=advice, cause="")


_NO_UPDATE: Final = re.compile(r"(?:Error doing update|KeyError): '(?P<name>\w{3,100})'\Z", re.ASCII)


def _unknown_update(text: str, reasons: Sequence[Match | str], frames: Sequence[str]) -> str:
    """Return the name of an update that the release does not have, if that is why it failed; else ""."""
    told = [text] if not reasons else [one if isinstance(one, str) else one.text for one in reasons[-1:]]
    is_there = list(frames[-1:]) in ([UPDATES], [] if text else [UPDATES])
    found = _NO_UPDATE.fullmatch(told[0].strip()) if is_there else None
    return found["name"] if found else ""


def _not_known(passage: Passage, update: str) -> Passage:
    words = [
        (
            f"The table background_updates has an update, {update}, that this release does not know: a newer"
            " one put it there, and an older one was started again; or the name was put there by hand. The"
            " updates after it wait."
        )
    ]
    advice = [
        (
            "start the newer release again, which ends it. If that is not to be, or the name is wrong: delete"
            " its row while Synapse is down"
        )
    ]
    return msgspec.structs.replace(passage, words=words, advice=advice)


REQUEST_FAILED: Final = (
    "A request failed in this process with an exception, and was answered with an error 500."
)


_OF_REQUEST: Final = re.compile(r"method='(?P<method>[A-Z]{3,7})' uri='(?P<path>/[^'?\s]{1,500})", re.ASCII)
_SERVED: Final = "synapse.http.server"
"""The logger of requests that failed."""
LACKS: Final = "worker_lacks"
_NEWER: Final = "or update: newer releases let workers do more of it"


def failed_request(match: Match) -> str:
    """Return method and path of a request that failed; "" for any other message."""
    found = _OF_REQUEST.search(match.text) if match.message.logger == _SERVED else None
    return printable(f"{found['method']} {found['path']}") if found else ""


def to_main(passage: Passage, request: str, *, step: str = "") -> Passage:
    """Say that a request goes to the main process, in the place of the general `step` for all work."""
    sent = f"have the proxy send {request} to the main process"
    if any(sent in one for one in passage.advice):
        return passage
    advice = [f"{sent}; {_NEWER}", *(one for one in passage.advice if one != step)]
    return msgspec.structs.replace(passage, advice=advice)


def _is_of_no_writer(reasons: Sequence[Match | str]) -> bool:
    """Whether the reasons are known, and none leaves it to the request which process writes."""
    known = [one for one in reasons if isinstance(one, Match)]
    if any(_NOT_ON_WORKER.search(one.text) for one in known):
        return True
    return bool(known) and not _SAYS_WRITERS.intersection(one.message.key for one in known)


def _explained(match: Match, writers: Writers) -> Passage | None:
    message = match.message
    is_read = message.key in DETAILS and not match.is_cut
    passage = DETAILS[message.key](match, writers) if is_read else None
    if passage is not None or message.key in NOT_BY_DATA:
        return passage
    first, *others = match.meanings
    words = [first, *(f"Or: {other}" for other in others)]
    return _passage(match, words, [message.do] if message.do else [], [])


_TOLD_WHOLE: Final = ("sequence_table", "sequence_position")
"""Exceptions with a long text, all of which is in what is said of them."""


def _with_reasons(
    passage: Passage,
    match: Match,
    writers: Writers,
    reasons: Sequence[Match | str],
    frames: Sequence[str] = (),
    *,
    is_start: bool = False,
) -> Passage:
    """Add what the exceptions of a message mean, or the last of them as it is."""
    if (
        match.message.logger != REDIS
        and not match.pattern.is_raised
        and (named := find_reason(match.text[len(match.pattern.literals[0]) :]))
    ):
        reasons = [named, *reasons]
    known: dict[str, Passage] = {}
    for one in reasons:
        found = _explained(one, writers) if isinstance(one, Match) else None
        if found is not None and found.kind != match.message.key:
            found = of_redis_client(found, match.message.logger)
            found = _in_place(found, frames, match.message.key, is_start=is_start)
            known.setdefault(found.kind, found)
    if not known:
        last = next(
            (
                one if isinstance(one, str) else one.text
                for one in reasons[-1:]
                if isinstance(one, str) or one.message.key in NOT_BY_DATA
            ),
            "",
        )
        if not last:
            return passage
        words, advice = [f"The exception: {_shown(last)}"], list(passage.advice)
        if (told := told_of_exception(last, frames)) is not None:
            words.append(told.means)
            # The traceback is read, so that the advice to read it goes.
            advice = [step for step in advice if not step.startswith("read the ")]
            advice += [told.do] if told.do else []
        return msgspec.structs.replace(passage, words=[*passage.words, *words], advice=advice)
    # The traceback is read, so that the advice to read it goes.
    advice = [step for step in passage.advice if not step.startswith("read the ")]
    words = list(passage.words)
    for reason in known.values():
        first, *more = reason.words
        # Its values are in the meaning.
        shown = reason.text.partition(": ")[0] if reason.kind in _TOLD_WHOLE else _shown(reason.text)
        words += [f"{shown}: {first}", *(word for word in more if word not in words)]
        advice += [step for step in reason.advice if step not in advice]
    severity = min((passage.severity, *(each.severity for each in known.values())), key=SEVERITIES.index)
    cause = next(iter(known.values())).words[0]
    return msgspec.structs.replace(passage, words=words, advice=advice, severity=severity, cause=cause)


def _with_frames(passage: Passage, frames: Sequence[str], *, is_cut: bool) -> Passage:
    """Add where a traceback comes from of which the exception is not known, or missing."""
    words, advice = [*passage.words], passage.advice
    if is_cut:
        words.append("The traceback after it was cut off: the last line, with the exception, is missing.")
        advice = ["paste it as a whole"]
    return msgspec.structs.replace(passage, words=[*words, *_places(frames)], advice=advice)


_SENDS_ROWS: Final = (
    "the loop that sends the rows of streams to the other processes: until it succeeds, they are not told"
)
PARTS: Final = {
    "synapse/replication/tcp/resource.py": _SENDS_ROWS,
    "synapse/replication/tcp/handler.py": "what a process does with the commands and rows of the others",
    "synapse/replication/http/": "a request between two processes",
    "synapse/federation/sender/": "what this server sends to other homeservers",
    "synapse/federation/": "what other homeservers ask, and are asked",
    "synapse/appservice/": "what application services are sent",
    "synapse/push/": "pushes to telephones and mails",
    "synapse/handlers/sync.py": "the answer to a /sync",
    "synapse/handlers/sliding_sync/": "the answer to a sliding sync",
    "synapse/storage/background_updates.py": "an update of the database in the background",
    "synapse/app/": "the start of the process, or what it runs",
}
"""What a file of Synapse in a traceback tells of what failed: the first that is in it counts."""


def _part(frames: Sequence[str]) -> str:
    return next((start for start in PARTS if any(frame.startswith(start) for frame in frames)), "")


def _places(frames: Sequence[str]) -> list[str]:
    """Say where a traceback comes from."""
    if not frames:
        return []
    telling = [frame for frame in frames if frame not in _OF_ALL_TRANSACTIONS] or frames
    told = [f"The last file of Synapse in it is {printable(telling[-1])}."]
    if part := _part(frames):
        told.append(f"What failed is {PARTS[part]}.")
        return told
    # What was to be done is in the first files, how it is done in the last ones.
    modules = (module_of(frame.removesuffix(".py").replace("/", ".")) for frame in frames)
    if module := next((one for one in modules if one and one.name not in _OF_ALL), None):
        told.append(f"What failed has to do with {module.about.partition(';')[0]}.")
    return told


_OF_SYNAPSE: Final = frozenset(
    (
        "attr",
        "authlib",
        "canonicaljson",
        "cryptography",
        "hiredis",
        "ijson",
        "jinja2",
        "jsonschema",
        "matrix_common",
        "msgpack",
        "nacl",
        "netaddr",
        "OpenSSL",
        "prometheus_client",
        "psycopg2",
        "pydantic",
        "service_identity",
        "signedjson",
        "sortedcontainers",
        "synapse",
        "treq",
        "twisted",
        "txredisapi",
        "unpaddedbase64",
        "yaml",
    )
)
"""Packages in which a failure is told by what is known of it: Synapse's own, and its libraries."""


def in_package(passage: Passage, package: str) -> Passage:
    """Say of what failed that it did so in a package of other authors: a module, or a library."""
    if passage.severity != "error" or not package or package in _OF_SYNAPSE:
        return passage
    name = printable(package)
    told = (
        f"It was raised in {name}, which is no part of Synapse: a module of its configuration, or a library."
    )
    step = f"update {name}, so that it fits this release of Synapse (or take it out of the configuration)"
    advice = [step] if passage.kind in ("does_not_fit", "worker_lacks") else [step, *passage.advice]
    return msgspec.structs.replace(passage, words=[*passage.words, told], advice=advice)


_OF_ALL_TRANSACTIONS: Final = frozenset(("synapse/storage/database.py", "synapse/storage/_base.py"))
"""Files by way of which all statements go: the one before tells which."""

_OF_ALL: Final = frozenset(
    ("synapse.http.server", "synapse.http.site", "synapse.http", "synapse.logging", "synapse.metrics")
)
"""Modules by way of which everything goes."""


CUT_TRACEBACK: Final = "Traceback"
"""The text of a passage of a traceback of which the end is missing."""


def explain_traceback(
    exceptions: Sequence[str], logger: str, frames: Sequence[str] = (), said: str = ""
) -> Passage:
    """Explain a traceback of which no exception is known, nor what its `logger` `said`."""
    place, part = _places(frames), _part(frames)
    if logger and any(map(str.isalpha, said)):
        place.insert(0, f"It said: {_shown(said)}")
    if exceptions:
        text = _shown(exceptions[-1])
        if update := _unknown_update("", exceptions, frames):
            return _not_known(Passage(kind="update_failed", severity="error", text=text, words=[]), update)
        where = (
            f"The module {printable(logger)} logged a failure" if logger else "A traceback: something failed"
        )
        told = told_of_exception(exceptions[-1], frames)
        words = [
            f"{where} with an exception that is not known here. {text}",
            *([told.means] if told else []),
            *place,
        ]
        advice = [] if logger else ["the line of the log before it tells what failed: paste it too"]
        advice = [*([told.do] if told and told.do else []), *advice]
        if PARTS.get(part) == _SENDS_ROWS:
            advice.insert(0, "see which stream stands still, and at which process: synrepl inspect")
        advice.append("if it comes again and again: search for its last line, and update Synapse and modules")
    else:
        text = CUT_TRACEBACK
        words = [
            "A traceback that was cut off: its last line, which names the exception, is missing.",
            *([f"The module {printable(logger)} logged it."] if logger else []),
            *place,
        ]
        advice = ["paste the whole traceback" + ("" if logger else ", with the line of the log before it")]
        if (cut := told_of_cut(frames)) is not None:
            words.append(cut.means)
            advice.insert(0, cut.do)
    return Passage(kind="traceback", severity="error", text=text, words=words, advice=advice)


SEVERITIES: Final = ("error", "look", "", "normal")
"""The severities, the worst first."""


def _shown(text: str) -> str:
    """Return the beginning of an exception's text, for a sentence."""
    text = printable(without_secrets(" ".join(text[:MAX_TEXT].split())))
    if len(text) > MAX_REASON:
        return f"{text[:MAX_REASON]} ..."
    text = text.rstrip(".: ")
    # The text may begin within brackets or quotes, and up to Python 3.6 a repr ends with a comma.
    text = _REPR_END.sub(r"\1", text)
    while text and _is_unpaired(text, text[-1]):
        text = text[:-1].rstrip(".: ")
    return text


_REPR_END: Final = re.compile(r"(?<=['\"]),(\)*)\Z")


def _is_unpaired(text: str, last: str) -> bool:
    if last in "'\"":
        return text.count(last) % 2 == 1
    return text.count(last) > text.count(_OPENED.get(last, last))


_OPENED: Final = {">": "<", "]": "[", ")": "("}

MAX_REASON: Final = 200
"""The most characters that a sentence has of an exception's text."""


_SECRETS: Final = re.compile(
    r"(?P<before>USER_IP \S{1,300} ).*"
    r"|(?P<key>access_token=)[^&\s\"']+"
    r"|(?P<password>password=)[^&\s\"']+"
    r"|(?P<user>://[^/\s:@]{0,100}:)[^/\s@]{1,300}(?=@)"
    r"|\b(?:syt_|MDAx)\w{8,}",
    re.ASCII,
)


def without_secrets(text: str) -> str:
    """Return a text without the access tokens and passwords in it."""
    return _SECRETS.sub(lambda found: f"{found[found.lastgroup] if found.lastgroup else ''}(not shown)", text)


def _passage(match: Match, words: list[str], advice: list[str], fields: list[dict[str, Any]]) -> Passage:
    return Passage(
        kind=match.message.key,
        severity=match.message.severity,
        text=printable(without_secrets(" ".join(match.text[:MAX_TEXT].split()))),
        words=words,
        advice=advice,
        fields=fields,
    )


MAX_TEXT: Final = 300
"""The most characters of a message that are looked through for what is repeated of it."""
