"""Rows from recordings of real peers."""

import re
from pathlib import Path

import msgspec

from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NEWEST, Dialect

GOLDEN = Path(__file__).parent.parent / "golden"
DIALECTS = {"legacy": LEGACY, "middle": MIDDLE, "current": CURRENT}

# seconds (or a count, in samples), the number of a proxied connection, the direction, the line
_LINE = re.compile(rb"^\s*[\d.]+ (?:c\d+ )?< RDATA (\S+) (.*)$")


class Recorded(msgspec.Struct, frozen=True):
    """A row of a capture, and the dialect of its peer."""

    file: str
    dialect: Dialect
    stream: str
    text: bytes


def tcp_rows() -> list[Recorded]:
    """Every row of every capture of the TCP wire."""
    rows = []
    for folder, dialect in DIALECTS.items():
        for path in sorted((GOLDEN / folder).glob("*.txt")):
            for line in path.read_bytes().split(b"\n"):
                match = _LINE.match(line)
                if match:
                    text = match[2][match[2].index(b"[") :]
                    rows.append(Recorded(f"{folder}/{path.name}", dialect, match[1].decode(), text))
    return rows


def redis_rows() -> list[Recorded]:
    """Rows of the newest release, as published on Redis."""
    rows = []
    for line in (GOLDEN / "redis" / "rows.txt").read_bytes().splitlines():
        payload = line.split(b"\t", 2)[2]
        _, stream, _, _, text = payload.split(b" ", 4)
        rows.append(Recorded("redis/rows.txt", NEWEST, stream.decode(), text))
    return rows
