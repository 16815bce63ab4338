"""Recorded sessions of real peers: lines, who said them, and in which dialect.

A capture line is ``<seconds> <mark> <line>`` with ``>`` towards the master, ``<`` from it, ``*`` for a
remark; proxies put ``cN`` before the mark, samples a count in place of the seconds.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, Dialect

GOLDEN = Path(__file__).parent / "golden"
DIALECTS = {"legacy": LEGACY, "middle": MIDDLE, "current": CURRENT}

_LINE = re.compile(r" *[0-9.]+ (?:c\d+ )?([<>]) (.*)")


class Said(msgspec.Struct, frozen=True):
    """One line of a capture."""

    file: str
    number: int
    dialect: Dialect
    by_server: bool
    line: bytes


def said() -> Iterator[Said]:
    """Every wire line of every capture; raw bytes that are only described (``(raw)``) are left out."""
    for folder, dialect in DIALECTS.items():
        for path in sorted((GOLDEN / folder).glob("*.txt")):
            for number, text in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
                match = _LINE.fullmatch(text)
                if match is None or match[2].startswith("(raw)"):
                    continue
                yield Said(
                    file=f"{folder}/{path.name}",
                    number=number,
                    dialect=dialect,
                    by_server=match[1] == "<",
                    line=match[2].encode(),
                )
