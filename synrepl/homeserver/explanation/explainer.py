"""The explanation of a pasted text or a whole log: finds what is known in each line, and says what it means.

Lines that say the same are one passage. A message that comes with ever other values is explained for the
first `MAX_EXAMPLES` of them; when more come, all of them are one passage, with the first as the example. So
the memory does not depend on the length of a log.
"""

from collections import Counter, deque
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import msgspec

from synrepl.homeserver.explanation.addresses import of_redis_client
from synrepl.homeserver.explanation.background_updates import started_update, with_update
from synrepl.homeserver.explanation.cache_figures import CACHES, CacheFigures
from synrepl.homeserver.explanation.database import SCHEMA_LOOKED_AT, with_schema_check
from synrepl.homeserver.explanation.details import NOT_BY_DATA
from synrepl.homeserver.explanation.entries import PastedEntry, entries
from synrepl.homeserver.explanation.excerpts import MAX_TEXT, without_secrets
from synrepl.homeserver.explanation.faults import GENERAL, ReleaseFault, find_fault, told_of_fault, with_fault
from synrepl.homeserver.explanation.late_streams import LateStreams
from synrepl.homeserver.explanation.message_explainer import explain_message
from synrepl.homeserver.explanation.messages import Match, find_cut, find_message, find_reason, known_messages
from synrepl.homeserver.explanation.misrouted_requests import LACKS, failed_request, to_main
from synrepl.homeserver.explanation.modules import module_of, program_of
from synrepl.homeserver.explanation.other_servers import OtherServers
from synrepl.homeserver.explanation.pasted_lines import (
    REDIS,
    Header,
    LoggedText,
    read_line,
    split_lines,
)
from synrepl.homeserver.explanation.psql import (
    ExplainedOutput,
    Statement,
    explain_count,
    explain_statement,
    explain_table,
    find_statement,
    is_footer,
    is_logged_statement,
    progress_sentence,
)
from synrepl.homeserver.explanation.psql_descriptions import Descriptions
from synrepl.homeserver.explanation.redis_output import RedisOutput
from synrepl.homeserver.explanation.redis_server import BROKEN_INTO
from synrepl.homeserver.explanation.results import (
    MAX_NUMBERS,
    NOTHING_KNOWN,
    SEVERITIES,
    Explanation,
    HomeserverState,
    Passage,
    UnknownLine,
)
from synrepl.homeserver.explanation.retries import USED_UP, Retries
from synrepl.homeserver.explanation.samples import (
    MAX_SAMPLES,
    Sample,
    explain_samples,
    family_of,
    is_comment,
    read_samples,
)
from synrepl.homeserver.explanation.served_requests import Refusals
from synrepl.homeserver.explanation.tokens import (
    FieldPosition,
    SyncToken,
    below_sentences,
    compare,
    find_positions,
    find_room_positions,
    find_tokens,
    is_end_of_history,
    is_of_history,
    is_older,
    names_advice,
    releases,
    roles_of,
    token_fields,
)
from synrepl.homeserver.explanation.tracebacks import (
    CUT_TRACEBACK,
    explain_exception,
    explain_traceback,
    in_package,
)
from synrepl.homeserver.explanation.wire_lines import explain_line
from synrepl.homeserver.streams import POSITION_NAMES
from synrepl.wire.text import printable

MAX_EXAMPLES: Final = 10
"""A message is explained for so many different values at most."""

_TELLS_NO_FAILURE: Final = ("DEBUG", "INFO")
"""Levels of a line that is not known at which the words in it are of no failure."""

_FAILURES: Final = ("ERROR", "CRITICAL")
"""Levels of a line that is not known at which something failed."""

_LOUD: Final = {"CRITICAL": 0, "ERROR": 0, "WARNING": 1}
"""Levels in the order in which lines that are not known are shown; the others come after."""

MAX_UNKNOWN: Final = 3
"""The most lines that are not known that are shown as they are."""

_REQUESTS: Final = ("request", "proxy_request")
"""Messages of a request that was answered, by Synapse and by a proxy."""

_WITH_TOKENS: Final = (
    *_REQUESTS,
    "request_received",
    "sync_request",
    "response_cached",
    "response_made",
    "to_device_traced",
)
"""Messages of which the token that they have is explained too."""

MAX_FAILED: Final = 100
"""So many requests are kept of which the exception is not in the text: the last ones."""

_NEAR: Final = 60
"""Within so many lines of an exception its request may be."""

MAX_COMPARED: Final = 8
"""The most tokens that are compared with each other."""

KINDS: Final = {
    "sync_token": "a sync token",
    "compared_tokens": "several sync tokens",
    "position": "a position, such as t12-345 or RoomStreamToken(...)",
    "traceback": "a traceback of Python",
    "release_fault": "a fault of a release of Synapse",
    "no_way_out": "homeservers of which none is reached",
    USED_UP: "a transaction of the database of which all tries failed",
    "sql_table": "a table of the homeserver's database",
    "described_table": "a table as psql describes it (`\\d TABLE`)",
    "statement": "a statement to the database",
    "metric": "metrics of a process",
    "redis_clients": "the connections to Redis",
    "redis_nodes": "the nodes of a Redis Cluster (CLUSTER NODES)",
    "redis_commands": "commands to Redis (MONITOR)",
    "redis_subscribers": "the subscribers of a channel of Redis (PUBSUB NUMSUB)",
    "redis_info": "what Redis says of itself (INFO)",
    "protocol_line": "a line of the replication protocol (POSITION, RDATA, REPLICATE ...)",
}
"""The kinds of passages that are no messages of a log, with a name for each."""


def explain(text: str, state: HomeserverState = NOTHING_KNOWN) -> Explanation:
    """Explain what a text of a homeserver means: tokens, lines of its log, lines of the protocol.

    With the `state` of the homeserver, writers are called by their names, each table has what is stored now,
    and what is ahead of the database is told.
    """
    return explain_lines(split_lines(text), state)


def explain_lines(lines: Iterable[str], state: HomeserverState = NOTHING_KNOWN) -> Explanation:
    """Explain lines as `explain` does a text; the lines may be more than fit into the memory."""
    explainer = _Explainer(state)
    for entry in entries(lines):
        explainer.add(entry)
    return explainer.result()


class _Group:
    """The lines with one message: the passages of the first ones, and how many there are."""

    def __init__(self) -> None:
        self.passages: dict[bytes, Passage] = {}
        self.whole: Passage | None = None

    @property
    def is_full(self) -> bool:
        return len(self.passages) > MAX_EXAMPLES

    def add(self, passage: Passage, number: int, time: str) -> None:
        """Count a line that says this."""
        key = msgspec.json.encode((passage.kind, passage.words, passage.fields))
        self.passages[key] = _counted(self.passages.get(key), passage, number, time)
        self.count(passage, number, time)

    def count(self, passage: Passage, number: int, time: str) -> None:
        """Count a line like the others, without a look at its values."""
        self.whole = _counted(self.whole, passage, number, time)

    def result(self) -> list[Passage]:
        assert self.whole is not None
        return [self.whole] if self.is_full else list(self.passages.values())


class _Asked(msgspec.Struct):
    """How often a token was asked with, and when first and last."""

    first: str
    last: str
    count: int = 1


def _counted(same: Passage | None, passage: Passage, number: int, time: str) -> Passage:
    if same is None:
        return msgspec.structs.replace(passage, lines=[number], first_time=time, last_time=time)
    if same.lines[-1] == number:
        return same
    lines = [*same.lines, number] if len(same.lines) < MAX_NUMBERS else same.lines
    return msgspec.structs.replace(
        same,
        lines=lines,
        count=same.count + 1,
        first_time=same.first_time or time,
        last_time=time or same.last_time,
    )


_NEXT_ROLE: Final = {0: "asked", 1: "gave"}
"""What is said of a token that was given back, in order."""


class _Explainer:
    """What was found in the lines so far."""

    def __init__(self, state: HomeserverState) -> None:
        self._state = state
        self._writers = MappingProxyType(dict(state.writers))
        self._groups: dict[tuple[str, str], _Group] = {}
        self._tokens: dict[str, tuple[SyncToken, int, list[str]]] = {}
        self._asked: dict[str, _Asked] = {}
        self._roles: dict[str, list[str]] = {}
        self._lines = 0
        self._unrecognized: Counter[str] = Counter()
        self._errors = _UnknownErrors()
        self._unknown: dict[int, list[UnknownLine]] = {}
        self._cut = 0
        self._statement: Statement | None = None
        self._redis = RedisOutput()
        self._described = Descriptions()
        self._places: dict[str, list[int]] = {}
        self._others = OtherServers()
        self._retries = Retries()
        self._refusals = Refusals()
        self._late = LateStreams()
        self._update = ""
        self._is_at_schema = False
        self._failed: deque[tuple[int, str]] = deque(maxlen=MAX_FAILED)
        self._samples: dict[str, tuple[list[Sample], list[int], int]] = {}
        self._caches = CacheFigures()

    def add(self, entry: PastedEntry) -> None:
        """Explain one line, with the traceback after it, or one table."""
        if self._add_figures(entry):
            return
        self._lines += entry.lines
        header, texts = read_line(entry.line)
        match = next((found for text in texts if (found := find_message(text))), None)
        self._others.see(entry)
        if match is None:
            match = next((found for text in texts if (found := find_cut(text))), None)
            self._cut += match is not None
        is_told = match is not None and self._add_message(match, entry, header)
        self._is_at_schema = match is not None and SCHEMA_LOOKED_AT.match(match.text) is not None
        if match is not None and is_told and match.message.key not in _WITH_TOKENS:
            return
        passages = self._explain_texts(texts, entry)
        if not is_told and all(one.kind in ("sync_token", "position") for one in passages):
            passages += self._explain_reason(entry, header, texts[0].text if header and texts else "")
        if not passages and not header and (changed := explain_statement(entry.line)) is not None:
            shown = printable(without_secrets(entry.line.strip())[:MAX_TEXT])
            passages = [msgspec.structs.replace(changed, text=shown)]
        if not passages and not is_told and not header:
            named = (f"{text.exception}: {text.text}" if text.exception else text.text for text in texts)
            passages = [one for line in named if (one := explain_exception(line)) is not None][:1]
        if not header and (statement := find_statement(entry.line)) is not None:
            self._statement = statement
            if statement.verb == "select" and not passages:
                return
        is_request = match is not None and match.message.key in _REQUESTS
        for passage in passages:
            self._add_failure(passage, entry, header.time)
            if is_request and passage.kind == "sync_token":
                self._count_request(passage.text, header.time)
        for token in {one.text for one in passages if one.kind == "sync_token"}:
            if len(self._roles) <= MAX_EXAMPLES:
                self._add_roles(token, entry.line)
        if not passages and not is_told and not is_logged_statement(entry.line):
            if header and texts:
                self._keep_unknown(entry.number, texts[0])
            self._unrecognized[header.logger or program_of(entry.line)] += entry.lines

    def _keep_unknown(self, number: int, text: LoggedText) -> None:
        """Keep the first lines of each level that something logged and that are not known."""
        header = text.header
        if header.level in _FAILURES:
            self._errors.add(number, header, text.text)
        kept = self._unknown.setdefault(_LOUD.get(header.level, len(_LOUD)), [])
        if len(kept) < MAX_UNKNOWN:
            kept.append(
                UnknownLine(
                    line=number,
                    text=printable(without_secrets(" ".join(text.text[:MAX_TEXT].split()))),
                    level=printable(header.level),
                    logger=printable(header.logger),
                    request=printable(header.request),
                )
            )

    def _add_message(self, match: Match, entry: PastedEntry, header: Header) -> bool:
        """Explain the message that a line is; False if its values say that it is none."""
        message = match.message
        self._retries.see(match, header, entry.number)
        self._late.see_pair(match, header, entry.writer, entry.number)
        self._update = started_update(match.text) or self._update
        if (entry.is_cut or not entry.exceptions) and (request := failed_request(match)):
            self._failed.append((entry.number, request))
        group = self._groups.get((message.key, message.severity))
        is_full = message.key not in _WITH_TOKENS and group is not None and group.is_full
        if is_full and group is not None and group.whole is not None:
            group.count(group.whole, entry.number, header.time)
            return True
        fault = _fault(entry)
        reasons = [] if entry.is_cut else [_reason(text) or text for text in entry.exceptions]
        if fault is not None:
            # What is known of it says more than what such an exception means in general.
            reasons = [
                one.text if isinstance(one, Match) and one.message.key in GENERAL else one for one in reasons
            ]
        passage = explain_message(
            match, self._writers, reasons, entry.frames, is_cut=entry.is_cut, is_start=entry.is_start
        )
        if passage is not None and fault is not None and _is_of(fault, passage):
            passage = with_fault(passage, fault)
        is_unknown = entry.is_cut or not entry.exceptions
        if passage is not None and passage.kind == "startup_failed" and self._is_at_schema and is_unknown:
            passage = with_schema_check(passage, entry.frames)
        if passage is not None and passage.kind == "update_failed":
            passage = with_update(passage, self._update)
        if passage is not None:
            request = header.request and f"{entry.writer} {header.request}"
            passage = self._refusals.told(passage, match, request)
            self._late.see(match, passage, header, entry.writer, entry.number, entry.exceptions)
            self._add_failure(passage, entry, header.time)
            if passage.severity == "normal" and entry.exceptions and not entry.is_traceback:
                # What the line says is normal; the traceback below it is not told by it.
                for one in self._explain_reason(entry, header, ""):
                    self._add(one, entry.number, header.time)
        return passage is not None

    def _add_figures(self, entry: PastedEntry) -> bool:
        """Explain a table of the database, a statement, or a sample of metrics; whether it is one."""
        table, statement = entry.table, self._statement
        if table is not None:
            self._lines += table.lines
            if self._described.takes_columns(table):
                return True
            if (read := explain_table(table, statement)) is None:
                self._unrecognized[""] += table.lines
            else:
                self._add_table(read, entry.number)
            return True
        if statement is not None and entry.line.strip().lstrip("-").isdecimal():
            self._add_table(explain_count(entry.line, statement), entry.number)
        elif samples := read_samples(entry.line):
            for sample in samples:
                self._add_sample(sample, entry.number)
        elif self._described.takes(entry.line, entry.number) or self._redis.takes(entry.line, entry.number):
            pass
        elif not is_comment(entry.line) and not is_footer(entry.line):
            return False
        self._lines += entry.lines
        return True

    def _add_sample(self, sample: Sample, number: int) -> None:
        self._caches.see(sample)
        samples, lines, count = self._samples.get(family := family_of(sample.name), ([], [], 0))
        if count <= MAX_SAMPLES:
            samples.append(sample)
            lines.append(number)
        self._samples[family] = (samples, lines, count + 1)

    def _add_table(self, read: ExplainedOutput, number: int) -> None:
        self._add(read.passage, number, "")
        self._places.setdefault(read.table, []).extend(read.places)
        self._statement = None

    def _explain_reason(self, entry: PastedEntry, header: Header, said: str) -> list[Passage]:
        """Explain what is known of a line that says more: an exception, or words of PostgreSQL.

        `said` is the message of a logger, which is not known.
        """
        if header.logger == REDIS:
            return []
        if header.level not in _TELLS_NO_FAILURE and (fault := _fault(entry)) is not None:
            shown = entry.exceptions[-1] if entry.exceptions else said or entry.line
            return [told_of_fault(fault, printable(without_secrets(" ".join(shown[:MAX_TEXT].split()))))]
        found = next((match for text in entry.exceptions if (match := _reason(text))), None)
        if found is None and not (header.logger and header.level in _TELLS_NO_FAILURE):
            found = find_reason(entry.line)
        passage = None
        if found is not None:
            frames, is_start = entry.frames, entry.is_start
            passage = explain_message(found, self._writers, frames=frames, is_start=is_start)
        if passage is not None:
            passage = of_redis_client(passage, header.logger)
            module = module_of(header.logger)
            if module is not None and module.is_beside:
                about = f"{printable(header.logger)} logged it ({module.about.partition(';')[0]}): {BESIDE}"
                return [msgspec.structs.replace(passage, words=[*passage.words, about])]
            return [passage]
        if entry.exceptions or entry.is_traceback or entry.is_cut:
            return [explain_traceback(entry.exceptions, header.logger, entry.frames, said)]
        return []

    def _add_failure(self, passage: Passage, entry: PastedEntry, time: str) -> None:
        """Add what failed, with the package of another author in which it did."""
        self._add(in_package(passage, entry.package), entry.number, time)

    def _add(self, passage: Passage, number: int, time: str) -> None:
        group = self._groups.setdefault((passage.kind, passage.severity), _Group())
        group.add(_with_state(passage, self._state), number, time)

    def _add_roles(self, token: str, line: str) -> None:
        """Keep what is said of a token, until an answer gave back what was asked with.

        The other way round is how a client goes on: an answer gave it, and the next request asks with it.
        """
        said = self._roles.setdefault(token, [])
        for role in roles_of(token, line):
            if role == _NEXT_ROLE.get(len(said)):
                said.append(role)

    def _count_request(self, token: str, time: str) -> None:
        if (same := self._asked.get(token)) is not None:
            same.count += 1
            same.last = time
        elif len(self._asked) <= MAX_EXAMPLES:
            self._asked[token] = _Asked(time, time)

    def _asked_again(self, passage: Passage) -> Passage:
        """Say of a token that a client asked with it again: it has received nothing meanwhile."""
        said = []
        asked = self._asked.get(passage.text) if passage.kind == "sync_token" else None
        if asked is not None and asked.first != asked.last:
            said.append(
                f"It was asked with {asked.count} times, from {asked.first} to {asked.last}: a client"
                " that asks again with the same token has received nothing in that time. Where nobody"
                " wrote anything, that is normal."
            )
        if passage.kind == "sync_token" and len(self._roles.get(passage.text, ())) == len(_NEXT_ROLE):
            said.append(
                "A request asked with it, and an answer gave it back: its client is no further. After a wait"
                " of the whole timeout with nothing new that is normal; at once, or with something in the"
                " answer, the client asks the same again and again."
            )
        if not said:
            return passage
        return msgspec.structs.replace(
            passage,
            words=[*passage.words, *said],
            advice=[
                *passage.advice,
                (
                    "if something was written meanwhile, this process does not receive it: see which stream"
                    " it lacks with synrepl inspect, or with --homeserver what is stored now"
                ),
            ],
        )

    def _explain_texts(self, texts: list[LoggedText], entry: PastedEntry) -> list[Passage]:
        """Explain what is no message: of the texts in a line, the first in which something is known."""
        for text in texts:
            # A line that a logger wrote is none of the protocol, whatever it looks like.
            if not text.header and (found := explain_line(text.text)) is not None:
                return [found]
        for text in texts:
            if tokens := find_tokens(text.text, self._writers):
                for shown, token in tokens:
                    is_whole = "(" not in shown or shown.endswith(")")
                    is_of_sync = is_whole and not is_of_history(shown, entry.line)
                    if is_of_sync and len(self._tokens) <= MAX_COMPARED:
                        self._tokens.setdefault(shown, (token, entry.number, roles_of(shown, entry.line)))
                return [_explain_token(shown, token, entry.line) for shown, token in tokens]
        for text in texts:
            if rooms := list(find_room_positions(text.text, self._writers)):
                return [_explain_position(shown, "Room", position) for shown, position in rooms]
            if logged := list(find_positions(text.text)):
                return [_explain_position(*one) for one in logged]
        return []

    def result(self) -> Explanation:
        """Return all passages, the worst first."""
        found = (one for group in self._groups.values() for one in group.result())
        passages = self._retries.told(
            [self._with_request(self._with_progress(self._asked_again(one))) for one in found]
        )
        passages = self._late.told(passages)
        for family, (samples, lines, count) in self._samples.items():
            passage = explain_samples(samples, count)
            if family == CACHES:
                passage = self._caches.told(passage)
            passages.append(msgspec.structs.replace(passage, lines=lines[:MAX_NUMBERS], count=count))
        passages += self._redis.passages()
        passages += self._described.passages()
        if compared := self._compared():
            passages.append(compared)
        if unreached := self._others.passage():
            passages.append(unreached)
        if passages and all(one.severity == "normal" for one in passages) and self._errors.count:
            passages.append(self._errors.passage())
        passages = _with_end(passages)
        passages.sort(key=lambda one: (_rank(one), one.kind == "sync_token", one.lines[0]))
        if self._cut and passages:
            worst = passages[0]
            passages[0] = msgspec.structs.replace(worst, advice=[*worst.advice, WHOLE])
        passages = [_without_secrets(one) for one in passages]
        modules = {name: module for name in self._unrecognized if (module := module_of(name))}
        return Explanation(
            passages=passages,
            lines=self._lines,
            unrecognized=self._unrecognized.total(),
            other_loggers=dict(self._unrecognized.most_common()),
            areas={name: module.about for name, module in modules.items()},
            beside=[name for name, module in modules.items() if module.is_beside],
            unknown=[one for _, kept in sorted(self._unknown.items()) for one in kept][:MAX_UNKNOWN],
            summary=_summary(passages),
        )

    def _with_request(self, passage: Passage) -> Passage:
        """Name the request near by of which the exception is cut off, where a worker lacks what one needs."""
        if passage.kind != LACKS:
            return passage
        apart = [
            (abs(number - line), number, request)
            for number, request in self._failed
            for line in passage.lines
            if abs(number - line) <= _NEAR
        ]
        if not apart:
            return passage
        _, number, request = min(apart)
        told = (
            f"Most likely it is what {request} needs, which failed here (line {number}), and of which the"
            " exception is cut off."
        )
        named = msgspec.structs.replace(passage, words=[*passage.words, told])
        return to_main(named, request, step=_general_step())

    def _with_progress(self, passage: Passage) -> Passage:
        """Say of a table that follows the events how far it is from the newest one, if the text has that."""
        newest = max(self._places.get("events", ()), default=None)
        if newest is None or passage.kind != "sql_table" or passage.text == "events":
            return passage
        said = [progress_sentence(passage.text, one, newest) for one in self._places.get(passage.text, ())]
        return msgspec.structs.replace(passage, words=[*said, *passage.words])

    def _compared(self) -> Passage | None:
        """Compare the tokens with each other, if they are few: those of a whole log are of many clients."""
        tokens = [one for one in self._tokens.values() if one[0].positions["room"].topological is None]
        if not 2 <= len(tokens) <= MAX_COMPARED:
            return None
        order = "in the order in which they are in the text"
        # Synapse logs a request after what its answer has.
        is_reversed = tokens[0][2][:1] == ["gave"] and tokens[-1][2][:1] == ["asked"]
        if is_reversed and all(is_older(after[0], before[0]) for before, after in pairwise(tokens)):
            order = "from that of a request to that of its answer, which is logged first"
            tokens.reverse()
        words, rows = compare([token for token, _, _ in tokens])
        lines = sorted({number for _, number, _ in tokens})
        return Passage(
            kind="compared_tokens",
            text=f"{len(tokens)} tokens",
            words=[f"{len(tokens)} tokens, compared {order}.", *words],
            fields=rows,
            lines=lines,
            count=len(lines),
        )


BESIDE: Final = "not about streams."
"""The end of what is said of a failure in a module that has nothing to do with streams."""

WHOLE: Final = (
    "lines of this text were cut off at the width of a window: paste them whole, by journalctl --no-pager"
    " -o cat -u UNIT, docker service ps --no-trunc, or without less -S"
)
"""What to do about lines that a pager or a table cut off."""

_STARTS: Final = ("startup_failed", "start_listening_failed")
"""Messages of a start that failed: without the reason, what was logged before may be it."""

_OF_OTHERS: Final = ("fed_", "key_lookup", "device_resync")
"""Beginnings of the keys of messages about other homeservers, of which many fail at all times."""


def _is_minor(passage: Passage) -> bool:
    """Whether what is worth a look is mostly of no weight beside the rest."""
    # A process without Redis says so of each homeserver that is back.
    is_alone = passage.kind == "command_dropped" and "REMOTE_SERVER_UP" in passage.text
    return is_alone or passage.kind.startswith(_OF_OTHERS) or passage.kind in _beside()


@cache
def _general_step() -> str:
    """Return what is to be done about whatever a worker lacks."""
    return next(one.do for one in known_messages() if one.key == LACKS)


@cache
def _beside() -> frozenset[str]:
    """Return the keys of messages of modules that have nothing to do with streams or workers."""
    named = ((one.key, module_of(one.logger)) for one in known_messages() if one.logger)
    return frozenset(key for key, module in named if module is not None and module.is_beside)


_GAVE_UP: Final = ("sync_empty", "sliding_sync_empty")
"""Messages of a request that did not get what it waited for: another line tells which stream was behind."""


_ENDS: Final = ("app_ends", "process_stops")
"""Messages of a process that was asked to end."""

_BROKEN_OFF: Final = ("redis_lost",)
"""Messages that are part of that."""

_NEAR_END: Final = 6
"""Within so many lines of it."""


def _with_end(passages: list[Passage]) -> list[Passage]:
    """Say of connections that were lost while the process ended that this is part of it."""
    ends = [line for one in passages if one.kind in _ENDS for line in one.lines]

    def told(one: Passage) -> Passage:
        is_near = one.count <= len(one.lines) and all(
            any(abs(line - end) <= _NEAR_END for end in ends) for line in one.lines
        )
        if one.kind not in _BROKEN_OFF or not is_near:
            return one
        words = [
            "The process was asked to end at that time, and its connection to Redis ended with it.",
            "This is normal.",
        ]
        return msgspec.structs.replace(one, severity="normal", words=words, advice=[], cause="")

    return [told(one) for one in passages] if ends else passages


def _without_secrets(passage: Passage) -> Passage:
    """Hide what a value that is told may have: the answer is what people paste into public issues."""
    return msgspec.structs.replace(
        passage,
        text=without_secrets(passage.text),
        words=[without_secrets(word, is_sentence=True) for word in passage.words],
        cause=without_secrets(passage.cause, is_sentence=True),
        fields=[
            {key: without_secrets(value) if isinstance(value, str) else value for key, value in row.items()}
            for row in passage.fields
        ],
    )


def _rank(passage: Passage) -> float:
    """How far below a passage is told: one of a break-in first; a traceback without its end says less."""
    rank = SEVERITIES.index(passage.severity)
    if passage.kind == BROKEN_INTO:
        return rank - 0.5
    is_cut = passage.kind == "traceback" and passage.text == CUT_TRACEBACK
    return SEVERITIES.index("look") + 0.5 if is_cut else rank


def _summary(passages: list[Passage]) -> str:
    """Say in a sentence what is likely wrong: what the worst message means, and its cause."""
    known = [one for one in passages if one.severity]
    # What other modules logged is told where there is nothing else.
    told = [one for one in known if not one.words[-1].endswith(BESIDE)] or known
    if not told:
        return ""
    worst = told[0]
    if worst.severity == "normal":
        return "Of what is known here, nothing failed."
    # One that gives its reason says more than one that only failed, and one of this server more than others'.
    found = [one for one in told if one.severity == worst.severity]
    found = [one for one in found if not _is_minor(one)] or found
    worst = next((one for one in found if one.cause), found[0])
    alike = [one for one in told if one.severity == worst.severity and one.kind != worst.kind]
    # What the system or the database said is nearer to the cause than what failed for it.
    first = " ".join([worst.words[0], *([worst.cause] if worst.cause else [])])
    if worst.kind in _GAVE_UP:
        waits = (one.words[0] for one in told if one.kind == "stream_wait_start" and one.fields)
        first = " ".join([first, *list(waits)[:1]])
    if worst.kind in _STARTS and not worst.cause:
        before = (one.words[0] for one in told if one.severity == "look")
        first = " ".join([first, *list(before)[:1]])
    more = f" {len(alike)} more below." if alike else ""
    return f"{first}{more}"


class _UnknownErrors:
    """Lines of errors that are not known: all are counted, the first ones are kept."""

    def __init__(self) -> None:
        self.count = 0
        self._shown: dict[str, None] = {}
        self._loggers: dict[str, None] = {}
        self._lines: list[int] = []
        self._times = ("", "")

    def add(self, number: int, header: Header, text: str) -> None:
        """Count a line of an error."""
        self.count += 1
        first, last = self._times
        self._times = (first or header.time, header.time or last)
        for kept, one in (
            (self._shown, printable(without_secrets(text[:MAX_TEXT]))),
            (self._loggers, printable(header.logger)),
        ):
            if one and len(kept) < MAX_EXAMPLES:
                kept.setdefault(one)
        if len(self._lines) < MAX_NUMBERS:
            self._lines.append(number)

    def passage(self) -> Passage:
        """Tell them, where all that is known is normal."""
        first, *others = self._shown
        by = f" of {', '.join(self._loggers)}" if self._loggers else ""
        return Passage(
            kind="unknown_error",
            text=first,
            severity="error",
            words=[f"Something failed that is not known here: errors{by}, which say: {first}", *others],
            advice=[
                "read these lines first: what is recognized below is normal, and not why they were logged"
            ],
            lines=self._lines,
            count=self.count,
            first_time=self._times[0],
            last_time=self._times[1],
        )


def _is_of(fault: ReleaseFault, passage: Passage) -> bool:
    """Whether a fault may be what a message tells of: what is normal is at most of one that is harmless."""
    return passage.severity != "normal" or fault.severity == "normal"


def _fault(entry: PastedEntry) -> ReleaseFault | None:
    """Return the fault of a release that a line, or the traceback after it, tells of."""
    return find_fault((*entry.exceptions, entry.line), entry.frames)


def _reason(text: str) -> Match | None:
    """Return what is known of an exception's line."""
    for one in read_line(text)[1]:
        found = find_message(one)
        # A name may be that of a stream, or of anything else.
        if found is not None and (found.message.key not in NOT_BY_DATA or explain_message(found, {})):
            return found
    return find_reason(text)


def _with_state(passage: Passage, state: HomeserverState) -> Passage:
    """Add what the database has now of the streams in the table."""
    if not state.positions or not any(row.get("stream") for row in passage.fields):
        return passage
    words, rows = list(passage.words), []
    for row in passage.fields:
        stream = str(row.get("stream", ""))
        name = POSITION_NAMES.get(stream, stream)
        stored = state.positions.get(name, {})
        rows.append({**row, "stored_now": ", ".join(f"{one} {at}" for one, at in sorted(stored.items()))})
        said = next((row[key] for key in ("position", "token", "written_up_to") if key in row), None)
        last = max([state.allocated.get(name, 0), *stored.values()])
        if stored and isinstance(said, int) and said > last:
            words.append(
                f"{row.get('field') or stream} is at {said}, ahead of the database, which has none beyond"
                f" {last}: it was restored from an older copy, or the text is of another homeserver."
            )
    return msgspec.structs.replace(passage, words=list(dict.fromkeys(words)), fields=rows)


def _explain_token(text: str, token: SyncToken, line: str) -> Passage:
    words = []
    room = token.positions["room"]
    if room.topological is not None:
        words.append(
            f"A token of a room's history: it pages back after depth {room.topological}, event"
            f" {room.minimum}; only the room counts."
        )
    elif is_of_history(text, line):
        words.append(
            f"A place in a room's history, as prev_batch: it pages back from event {room.minimum}. It is by"
            " nature older than the next_batch of the same answer; only the room counts."
        )
    else:
        after = f"after event {room.minimum}, and in each other stream after the position in the table"
        words.append(f"A sync token: what a client has received ends {after}.")
    if is_end_of_history(text, line):
        words.append(
            "The answer begins and ends with it: in that direction the room has nothing more that this server"
            " knows."
        )
    if token.connection is not None:
        words.append(f"It is one of sliding sync: {token.connection} is the state of the connection.")
    words += releases(token)
    labels = [writer for position in token.positions.values() for writer in position.ahead]
    return Passage(
        kind="sync_token",
        text=printable(text),
        words=words,
        advice=names_advice(labels),
        fields=token_fields(token),
    )


def _explain_position(text: str, kind: str, position: FieldPosition) -> Passage:
    where = "the stream events" if kind == "Room" else "a stream that several processes write"
    if position.topological is not None:
        said = (
            f"A place in a room's history: it pages back after depth {position.topological}, event"
            f" {position.minimum}."
        )
    elif position.ahead:
        said = f"A place in {where}: all writers are after {position.minimum}, but these further."
    else:
        said = f"A place in {where}: after {'event ' if kind == 'Room' else ''}{position.minimum}."
    words = [said, *below_sentences("the position", position, is_written=kind == "Room")]
    if kind == "Room":
        words.append("A sync token begins with this; here the other fields are missing.")
        fields = token_fields(SyncToken({"room": position}))
    else:
        words.append(
            "By itself a position does not tell its stream: receipts, device_lists, or another of a sync"
            " token."
        )
        fields = [{"writer": "all others", "position": position.minimum}] + [
            {"writer": writer, "position": place} for writer, place in position.ahead.items()
        ]
    return Passage(
        kind="position", text=printable(text), words=words, advice=names_advice(position.ahead), fields=fields
    )
