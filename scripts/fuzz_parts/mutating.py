"""Mutation of inputs: flips bits, removes, repeats and joins pieces, replaces words and numbers."""

import random
import re
from collections.abc import Sequence
from typing import Final

__all__ = ["MAX_INPUT", "mutated"]

MAX_INPUT: Final = 200_000
"""The largest input in bytes; larger ones cost time, and find nothing else."""

NUMBERS: Final = [
    b"0", b"-1", b"1e400", b"2147483648", b"4294967296", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775809", b"1" * 400, b"NaN", b"0x10", b"1_0", b"\xd9\xa1", b"+1", b"00", b"1.0",
]  # fmt: skip
"""Numbers that programs do not expect."""

PIECES: Final = [
    b"\n", b"\r\n", b"\r", b"\0", b" ", b"\t", b"\x0b", b"\x1c", b"\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf",
    b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\\ud800", b"\\u0000", b"\\", b'"', b"'",
    b"[", b"]", b"{", b"}", b"[" * 2_000, b"{}", b"null", b"true", b"[[]]", b"%", b"%00", b"%ff", b"%s",
    b"{0}", b"{self}", b"\x1b[2J", b"a" * 20_000, b"&", b"=", b",", b":", b"/", b"..", b"#", b"*", b"!",
]  # fmt: skip
"""Texts that end, nest, escape or repeat something."""

DIGITS: Final = re.compile(rb"[0-9]+")
WORD: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_-]+")


def mutated(chance: random.Random, pool: Sequence[bytes]) -> bytes:
    """Return one of these inputs with up to eight changes, which may add parts of another input."""
    data = chance.choice(pool)
    for _ in range(chance.choice((1, 1, 2, 2, 3, 5, 8))):
        data = _changed(chance, data, pool)
    return data[:MAX_INPUT]


def _changed(chance: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice((0, 1, 1, 2, 4, 16, 100, 1000)))
    match chance.randrange(9):
        case 0 if data:
            start = min(start, len(data) - 1)
            return data[:start] + bytes([data[start] ^ 1 << chance.randrange(8)]) + data[start + 1 :]
        case 1:
            return data[:start] + chance.randbytes(chance.choice((1, 1, 2, 8))) + data[end:]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:end] + data[start:end] * chance.choice((1, 1, 2, 50)) + data[end:]
        case 4:
            return data[:start] + chance.choice(PIECES) + data[end:]
        case 5:
            return _replaced(chance, DIGITS, data, chance.choice(NUMBERS))
        case 6:
            return _replaced(chance, WORD, data, _word(chance, chance.choice(pool)))
        case 7:
            lines = data.splitlines(keepends=True)
            chance.shuffle(lines)
            return b"".join(lines)
    other = chance.choice(pool)
    return data[:start] + other[chance.randint(0, len(other)) :]


def _replaced(chance: random.Random, what: "re.Pattern[bytes]", data: bytes, by: bytes) -> bytes:
    """Replace one match of the pattern; append the replacement if there is none."""
    places = [found.span() for found in what.finditer(data)]
    if not places:
        return data + by
    start, end = chance.choice(places)
    return data[:start] + by + data[end:]


def _word(chance: random.Random, data: bytes) -> bytes:
    words: list[bytes] = WORD.findall(data)
    return chance.choice(words or [b"word"])
