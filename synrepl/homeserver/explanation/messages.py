"""The messages that Synapse logs about replication, by release: ``messages.json``, and its matcher.

A form is the format string of a logger, cut where the rest tells nothing more. A text has a form if its
literals are at the beginning, in order; of several forms the one with the most letters wins. A logger that is
known to be another one rules a form out, unless the form is so long that no other message reads so.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final, Literal

import msgspec

from synrepl.homeserver.explanation.pasted_lines import REDIS, LoggedText, without_cut
from synrepl.homeserver.explanation.text_index import HeadIndex, WordIndex
from synrepl.wire.dialect import Release, Span, parse_release

Severity = Literal["error", "look", "normal"]

FormRow = tuple[str, str, str | None, str | None]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message, in all its forms.

    `severity` is "normal" (nothing to do), "look" (look into it if it repeats) or "error" (something failed).
    `forms` are of the level, the pattern, the first release and the first one without it. The level "raise X"
    is of an exception's text, which stands at the end of a traceback. The `logger` is "" for the words of
    PostgreSQL and Redis.
    """

    key: str
    logger: str
    severity: Severity = msgspec.field(name="is")
    means: str
    do: str
    forms: list[FormRow]


DISTINCT: Final = 30
"""So many letters make a form one that no other module's message has."""

TELLING: Final = 8
"""A form with fewer letters is recognized only after its logger, or as the whole text."""

CUT: Final = 20
"""A form with so many letters before its only place is recognized if it was cut off in that place."""

ADDRESSED: Final = "db_unreachable"
"""The message of a database's address and what came of it, which may be an answer with its own meaning."""

_FAMILIES: Final = (
    ("synapse.federation.transport.server", "synapse.federation.transport.server._base"),
    ("synapse.app.", "synapse.app.generic_worker"),
    ("synapse.access.", "synapse.access"),
    ("synapse.config.logger", "root"),
    ("synapse.rest.client.v2_alpha.sync", "synapse.rest.client.sync"),
    # Before 1.19 storage was divided otherwise.
    ("synapse.storage.data_stores.main.events_worker", "synapse.storage.databases.main.events_worker"),
    (
        "synapse.storage.data_stores.main.event_push_actions",
        "synapse.storage.databases.main.event_push_actions",
    ),
    *(
        (start, "synapse.logging.context")
        for start in (
            "synapse.util.logcontext",
            "synapse.util.metrics",
            "synapse.http.request_",
            "synapse.storage.",
        )
    ),
)
"""Loggers that log what another one logs; requests are logged by one for each listener."""

_LONGEST: Final = 2000
"""The most characters of a message that are compared."""

_PLACEHOLDER: Final = re.compile(r"%(?:\(\w+\))?([sridf])|\{[\w.]+\}")
_PLACES: Final = {
    "s": "(.*?)",
    # What `repr` begins with: a text, bytes, a number, a collection, an object, a constructor.
    "r": r"((?=[bu]?['\"]|[\[{(<]|-?\d|None|True|False|[\w.]+[(<\[{]).*?)",
    "i": r"(-?\d+)",
    "d": r"(-?\d+)",
    "f": r"(-?[\d.]+)",
}


_WHOLE_WORD: Final = re.compile(r"(?<![\w\0])\w+(?![\w\0])", re.ASCII)


class _Pattern:
    """One pattern of a message: the forms that have it differ in level and release."""

    def __init__(self, message: Message, text: str, forms: list[FormRow]) -> None:
        self.message = message
        self.is_raised = forms[0][0].startswith("raise ")
        self.is_current = any(until is None for _, _, _, until in forms)
        self._forms = forms
        # People leave out the full stop.
        parts = _PLACEHOLDER.split(text.removesuffix("."))
        self.literals = parts[::2]
        self._longest = max(self.literals, key=len)
        self.weight = sum(one.isalpha() for literal in self.literals for one in literal)
        self._kinds = [kind or "s" for kind in parts[1::2]]
        self.represented = self._kinds.count("r")
        body = "".join(
            re.escape(literal) + _PLACES.get(kind, "")
            for literal, kind in zip(self.literals, [*self._kinds, ""], strict=True)
        )
        if body.endswith(".*?)"):
            body = body.removesuffix(".*?)") + ".+)"
        # A word must not go on: "stream" is not the beginning of "streams".
        end = r"(?!\w)" if parts[-1][-1:].isalnum() else ""
        # A word beside a value, or at an open end, may go on.
        whole = "\0".join(self.literals) + ("" if end else "\0")
        self.words = _WHOLE_WORD.findall(whole)
        """The words that every text with this pattern has."""
        self._compiled: re.Pattern[str] | None = None
        self._anywhere: re.Pattern[str] | None = None
        self.body = body + end

    def match(self, text: str) -> re.Match[str] | None:
        """Return how a text has this pattern at its beginning."""
        if not text.startswith(self.literals[0]) or self._longest not in text:
            return None
        if self._compiled is None:
            self._compiled = re.compile(self.body, re.DOTALL | re.ASCII)
        return self._compiled.match(text)

    def match_cut(self, text: str) -> tuple[str, ...] | None:
        """Return the value of a text that was cut off within it: the only one, with something open."""
        beginning = self.literals[0]
        if self._kinds != ["s"] or sum(map(str.isalpha, beginning)) < CUT or not text.startswith(beginning):
            return None
        value = text.removeprefix(beginning)
        is_open = any(value.count(one) > value.count(other) for one, other in ("[]", "()", "<>"))
        return (value,) if is_open or value.count("'") % 2 or value.count('"') % 2 else None

    def begins_with(self, text: str) -> int:
        """Return how many letters of this pattern a text has that is its beginning; 0: it is not."""
        letters, rest = 0, text
        for place, literal in enumerate(self.literals):
            at = rest.find(literal) if place else (0 if rest.startswith(literal) else -1)
            if at < 0:
                if place:
                    return letters  # It was cut within a value.
                return sum(map(str.isalpha, rest)) if literal.startswith(rest) else 0
            letters += sum(map(str.isalpha, literal))
            rest = rest[at + len(literal) :]
        return letters

    def search(self, text: str) -> re.Match[str] | None:
        """Return where a text has this pattern."""
        if self._longest not in text or self.literals[0] not in text:
            return None
        if self._anywhere is None:
            self._anywhere = re.compile(rf"(?<!\w){self.body}", re.DOTALL | re.ASCII)
        return self._anywhere.search(text)

    def fits(self, text: str) -> bool:
        """Whether the whole text matches this pattern, with one word for each placeholder of a string."""
        found = self.match(text)
        return (
            found is not None
            and found.end() == len(text)
            and all(
                kind != "s" or _WORD.fullmatch(value)
                for kind, value in zip(self._kinds, found.groups(), strict=True)
            )
        )

    def spans(self, level: str) -> list[Span]:
        """Return the releases that write it, at this level if any does."""
        forms = [one for one in self._forms if level and _LEVELS.get(one[0], one[0].upper()) == level]
        return [
            Span(since=parse_release(since), until=parse_release(until) if until else None)
            for _, _, since, until in forms or self._forms
            if since is not None
        ]


_LEVELS: Final = {"exception (error)": "ERROR"}


_WORD: Final = re.compile(r"[\w@!#$%+/:.-]+")


class Match(msgspec.Struct, frozen=True):
    """A message that a text is: its text, and the values in the places of its pattern.

    `logger` is that which logged it, or "" if that is unknown.
    """

    pattern: _Pattern
    text: str
    values: tuple[str, ...]
    level: str
    logger: str
    is_cut: bool = False
    """Whether only the beginning of the text is there."""

    @property
    def message(self) -> Message:
        """The message."""
        return self.pattern.message

    @property
    def spans(self) -> list[Span]:
        """The releases that log it: those of all patterns of the message that the text has, if known."""
        if self.logger not in ("", self.message.logger):
            return []  # What is known of releases is not of this line.
        same = [one for one in _patterns().by_logger[self.message.logger] if one.message is self.message]
        fitting = [one for one in same if one is self.pattern or one.fits(self.text)] + self._like
        found: list[Span] = []
        for span in sorted((span for one in fitting for span in one.spans(self.level)), key=_since):
            before = found[-1] if found else None
            if before is None or (before.until is not None and before.until < span.since):
                found.append(span)
            elif before.until is not None and (span.until is None or span.until > before.until):
                found[-1] = Span(since=before.since, until=span.until)
        return found

    @property
    def meanings(self) -> list[str]:
        """What the text means: of several messages with the same text, if their logger is unknown."""
        return list(dict.fromkeys([self.message.means, *(one.message.means for one in self._like)]))

    @property
    def _like(self) -> list[_Pattern]:
        return [] if self.logger else _patterns().by_text[self.pattern.body]


def _since(span: Span) -> Release:
    return span.since


class _Patterns:
    """All patterns, found by logger, or by the beginning of a text; those with the most letters first."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        found = [
            _Pattern(message, text, [form for form in message.forms if form[1] == text])
            for message in messages
            for text in dict.fromkeys(form[1] for form in message.forms)
        ]
        found.sort(
            key=lambda one: (-one.weight, -sum(map(len, one.literals)), -one.represented, not one.is_current)
        )
        self.by_text: dict[str, list[_Pattern]] = {}
        self.by_logger: dict[str, list[_Pattern]] = {"": []}
        for pattern in found:
            self.by_logger.setdefault(pattern.message.logger, []).append(pattern)
            self.by_text.setdefault(pattern.body, []).append(pattern)
        others = [one for one in found if one.message.logger != REDIS]
        self.without_logger = HeadIndex(others)
        self.of_other_logger = HeadIndex(one for one in others if one.is_raised or one.weight >= DISTINCT)
        order = {id(one): place for place, one in enumerate(messages)}
        anywhere = [
            one
            for one in sorted(found, key=lambda one: order[id(one.message)])
            if one.is_raised and one.weight >= (DISTINCT if one.message.logger else TELLING)
        ]
        self.all = found
        self.anywhere = WordIndex(anywhere)
        self.of_database = WordIndex(
            one
            for one in anywhere
            if one.message.key.startswith(("db_", "pg_")) and one.message.key != ADDRESSED
        )
        # A password that is refused is in Redis' own log that of its master.
        self.of_redis = WordIndex(
            one
            for one in anywhere
            if one.message.key.startswith("redis_") and one.message.key != "redis_password"
        )

    def of_family(self, logger: str) -> Iterator[_Pattern]:
        """Yield the patterns of a logger, then those of the loggers that stand for it in other releases."""
        # Before 1.12 each kind of worker was a module of its own.
        family = [other for start, other in _FAMILIES if logger.startswith(start)]
        for name in dict.fromkeys([logger, *family]):
            yield from self.by_logger.get(name, ())


@cache
def _patterns() -> _Patterns:
    return _Patterns(known_messages())


@cache
def known_messages() -> tuple[Message, ...]:
    """Return all messages, in the order of the data."""
    data = resources.files(__package__).joinpath("messages.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[Message, ...])


def find_message(logged: LoggedText) -> Match | None:
    """Return the message that a text is; None if it is none that is known."""
    text, header = logged.text[:_LONGEST], logged.header
    patterns = _patterns()
    if header.logger == REDIS:
        own = ((one, one.match(text)) for one in patterns.by_logger[REDIS])
        said = next((Match(one, text, found.groups(), "", REDIS) for one, found in own if found), None)
        return said or _find_anywhere(text, patterns.of_redis)
    if header.logger and text:
        for pattern in patterns.of_family(header.logger):
            if found := pattern.match(text):
                return Match(pattern, logged.text, found.groups(), header.level, header.logger)
        for pattern in patterns.by_logger.get(header.logger, ()):
            if (values := pattern.match_cut(text)) is not None:
                return Match(pattern, logged.text, values, header.level, header.logger)
    index = patterns.of_other_logger if header.logger else patterns.without_logger
    for pattern in index[text] if text else ():
        if pattern.message.key == "unknown_stream_position" and logged.exception != "KeyError":
            continue
        found = pattern.match(text)
        if found is None or (pattern.weight < TELLING and found.end() < len(text)):
            continue
        shown = f"{logged.exception}: {logged.text}" if logged.exception else logged.text
        if pattern.is_raised and not pattern.message.logger and (reason := find_reason(text)):
            return msgspec.structs.replace(reason, text=shown)
        logger = "" if pattern.is_raised else header.logger
        return Match(pattern, shown, found.groups(), header.level, logger)
    return None


def find_cut(logged: LoggedText) -> Match | None:
    """Return the only message of which a text can be the beginning, cut off at the width of a window."""
    text = without_cut(logged.text[:_LONGEST])
    if not text:
        return None
    patterns, logger = _patterns(), logged.header.logger
    named = list(patterns.of_family(logger)) if logger else []
    # What a logger says in a line of its own is no exception's text.
    said = [one for one in named if not one.is_raised]
    for found, least in ((said, TELLING), (named, TELLING), (patterns.all, CUT)):
        shared = {id(one): one.begins_with(text) for one in found}
        most = max(shared.values(), default=0)
        best = [one for one in found if shared[id(one)] == most] if most >= least else []
        if len({one.message.key for one in best}) == 1:
            return Match(best[0], text, (), logged.header.level, logger, is_cut=True)
        if best:
            return None
    return None


def find_reason(text: str) -> Match | None:
    """Return the exception, or the words of PostgreSQL, Redis or the system, that a text has in it."""
    found = _find_anywhere(text, _patterns().anywhere)
    if found is None or found.message.key != ADDRESSED:
        return found
    # What the server said decides, and not the address before it.
    return _find_anywhere(found.text, _patterns().of_database) or found


def _find_anywhere(text: str, patterns: WordIndex[_Pattern]) -> Match | None:
    text = text[:_LONGEST]
    for pattern in patterns[text] if len(text) >= TELLING else ():
        if found := pattern.search(text):
            return Match(pattern, text[found.start() :], found.groups(), "", "")
    return None
