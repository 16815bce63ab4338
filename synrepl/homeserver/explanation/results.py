"""The results of an explanation. All texts in them are safe to print."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec


class HomeserverState(msgspec.Struct, frozen=True, kw_only=True):
    """What a homeserver's database says now.

    `writers` are the names of writers by their number in the table `instance_map`. `positions` are those of
    ``stream_positions``, and `allocated` the last ids of the sequences, by the names of streams there.
    """

    writers: Mapping[int, str] = {}
    positions: Mapping[str, Mapping[str, int]] = {}
    allocated: Mapping[str, int] = {}


NOTHING_KNOWN = HomeserverState()

SEVERITIES: Final = ("error", "look", "", "normal")
"""The severities, the worst first."""


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was recognized, and what it means.

    `kind` is a key of `KINDS`, the key of a message, or ``unknown_error``; `severity` is that of the
    message: "error", "look", "normal", or "" for what is no message. `text` is what was recognized,
    shortened. `words` are sentences, of which the first is the summary. `advice` is what to do or to look
    at next. `fields` are the rows of a table: all have the same names, in snake case. `lines` are the
    numbers of the first `MAX_NUMBERS` lines that say so, from 1 on, and `count` is of all of them;
    `first_time` and `last_time` are the times before the first and the last as they stand there, or "".
    `cause` tells what the message gives as its reason, or is "".
    """

    kind: str
    text: str
    words: list[str]
    advice: list[str] = []
    fields: list[dict[str, Any]] = []
    severity: str = ""
    lines: list[int] = []
    count: int = 1
    first_time: str = ""
    last_time: str = ""
    cause: str = ""


MAX_NUMBERS = 10
"""The most numbers of lines that a passage has."""


class UnknownLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that is not known, and what of it is: who logged it, at which level, for which request."""

    line: int
    text: str
    level: str = ""
    logger: str = ""
    request: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What was recognized in a text, the worst first; `summary` is what is likely wrong in it, or "".

    `lines` counts the lines with text. `unrecognized` counts those that contain nothing known, and
    `other_loggers` the same by the module that logged them, or "". `areas` tells what such a module does, if
    that is known, and `beside` names those of which nothing is about streams. `unknown` has the first lines
    that are not known, errors before others.
    """

    passages: Sequence[Passage]
    lines: int
    unrecognized: int
    other_loggers: Mapping[str, int] = {}
    areas: Mapping[str, str] = {}
    beside: Sequence[str] = ()
    unknown: Sequence[UnknownLine] = ()
    summary: str = ""
