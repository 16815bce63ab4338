"""The messages that Synapse logs about replication, by release: ``messages.json``, and its matcher.

A form is the format string of a logger, cut where the rest tells nothing more. A text has a form if its
literals are at the beginning, in order; of several forms the one with the most letters wins. A logger that is
known to be another one rules a form out, unless the form is so long that no other message reads so.
"""

import re
from functools import cache
from importlib import resources
from typing import Final, Literal

import msgspec

from synrepl.inspection.explanation.pasted_lines import LoggedText
from synrepl.wire.dialect import Release

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


class Match(msgspec.Struct, frozen=True):
    """A message that a text is, the text, and the releases that write it so: pairs of first and end."""

    message: Message
    text: str
    spans: list[tuple[Release | None, Release | None]]
    values: tuple[str, ...]


DISTINCT: Final = 30
"""So many letters make a form one that no other module's message has."""

TELLING: Final = 8
"""A form with fewer letters is recognized only after its logger, or as the whole text."""

_LONGEST: Final = 2000
"""The most characters of a message that are compared."""

_PLACEHOLDER: Final = re.compile(r"%(?:\(\w+\))?([sridf])|\{[\w.]+\}")
_PLACES: Final = {"i": r"(-?\d+)", "d": r"(-?\d+)", "f": r"(-?[\d.]+)"}


class _Pattern:
    """One pattern of a message: the forms that have it differ in level and release."""

    def __init__(self, message: Message, text: str, forms: list[FormRow]) -> None:
        self.message = message
        self.is_raised = forms[0][0].startswith("raise ")
        self._forms = forms
        # People leave out the full stop.
        parts = _PLACEHOLDER.split(text.removesuffix("."))
        self.literals = parts[::2]
        self.weight = sum(one.isalpha() for literal in self.literals for one in literal)
        places = [_PLACES.get(kind or "s", "(.*?)") for kind in parts[1::2]]
        body = "".join(
            re.escape(literal) + place for literal, place in zip(self.literals, [*places, ""], strict=True)
        )
        if body.endswith("(.*?)"):
            body = body.removesuffix("(.*?)") + "(.+)"
        # A word must not go on: "stream" is not the beginning of "streams".
        end = r"(?!\w)" if parts[-1][-1:].isalnum() and places[-1:] != ["(.*?)"] else ""
        self._compiled: re.Pattern[str] | None = None
        self._body = body + end

    def match(self, text: str) -> re.Match[str] | None:
        """Return how a text has this pattern at its beginning."""
        if not text.startswith(self.literals[0]) or any(one not in text for one in self.literals):
            return None
        if self._compiled is None:
            self._compiled = re.compile(self._body, re.DOTALL | re.ASCII)
        return self._compiled.match(text)

    def spans(self, level: str) -> list[tuple[Release | None, Release | None]]:
        """Return the releases that write it, at this level if any does."""
        forms = [one for one in self._forms if level and _LEVELS.get(one[0], one[0].upper()) == level]
        found: list[tuple[Release | None, Release | None]] = []
        for _, _, since, until in forms or self._forms:
            span = _release(since), _release(until)
            if span == (None, None):
                continue
            if found and found[-1][1] is not None and found[-1][1] == span[0]:
                found[-1] = found[-1][0], span[1]
            elif span not in found:
                found.append(span)
        return found


_LEVELS: Final = {"exception (error)": "ERROR"}


def _release(text: str | None) -> Release | None:
    if text is None:
        return None
    major, minor, *patch = (int(part) for part in text.split("."))
    return major, minor, patch[0] if patch else 0


class _Patterns:
    """All patterns, found by logger, or by the beginning of a text; those with the most letters first."""

    def __init__(self, messages: list[Message]) -> None:
        found: list[_Pattern] = []
        for message in messages:
            texts = dict.fromkeys(form[1] for form in message.forms)
            found += [
                _Pattern(message, text, [form for form in message.forms if form[1] == text]) for text in texts
            ]
        found.sort(key=lambda one: (-one.weight, -sum(map(len, one.literals))))
        self.by_logger: dict[str, list[_Pattern]] = {}
        for pattern in found:
            self.by_logger.setdefault(pattern.message.logger, []).append(pattern)
        unplaced = [one for one in found if len(one.literals[0]) < _HEAD]
        self._unplaced = unplaced
        self._by_head: dict[str, list[_Pattern]] = {}
        for head in {one.literals[0][:_HEAD] for one in found if one not in unplaced}:
            self._by_head[head] = [one for one in found if one in unplaced or one.literals[0][:_HEAD] == head]

    def candidates(self, text: str) -> list[_Pattern]:
        """Return the patterns that a text may have, whoever logged it."""
        return self._by_head.get(text[:_HEAD], self._unplaced)


_HEAD: Final = 4


@cache
def _patterns() -> _Patterns:
    return _Patterns(list(known_messages()))


@cache
def known_messages() -> tuple[Message, ...]:
    """Return all messages, in the order of the data."""
    data = resources.files(__package__).joinpath("messages.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[Message, ...])


def find_message(logged: LoggedText) -> Match | None:
    """Return the message that a text is; None if it is none that is known."""
    text, header = logged.text[:_LONGEST], logged.header
    if not text:
        return None
    patterns = _patterns()
    for pattern in patterns.by_logger.get(header.logger, []) if header.logger else []:
        if found := pattern.match(text):
            return Match(pattern.message, logged.text, pattern.spans(header.level), found.groups())
    for pattern in patterns.candidates(text):
        if _is_allowed(pattern, logged) and (found := pattern.match(text)):
            if pattern.weight < TELLING and found.end() < len(text):
                continue
            # Of another logger: what is known of releases is not of this line.
            spans = [] if header.logger and not pattern.is_raised else pattern.spans(header.level)
            shown = f"{logged.exception}: {logged.text}" if logged.exception else logged.text
            return Match(pattern.message, shown, spans, found.groups())
    return None


def _is_allowed(pattern: _Pattern, logged: LoggedText) -> bool:
    if pattern.message.key == "unknown_stream_position":
        return logged.exception == "KeyError"
    return not logged.header.logger or pattern.is_raised or pattern.weight >= DISTINCT
