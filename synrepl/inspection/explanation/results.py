"""The results of an explanation. All texts in them are safe to print."""

from collections.abc import Mapping, Sequence
from typing import Any

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


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was recognized, and what it means.

    `kind` is a key of `KINDS`. `text` is what was recognized, shortened. `words` are sentences, of which the
    first is the summary. `advice` is what to do or to look at next. `fields` are the rows of a table: all
    have the same names, in snake case. `lines` are the numbers of the lines that say the same, from 1 on.
    """

    kind: str
    text: str
    words: list[str]
    advice: list[str] = []
    fields: list[dict[str, Any]] = []
    lines: list[int] = []


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What was recognized in a text.

    `lines` counts the lines with text. `unrecognized` counts those that contain nothing known, and
    `skipped` those after the last line that was explained, which were not read.
    """

    passages: Sequence[Passage]
    lines: int
    unrecognized: int
    skipped: int = 0
