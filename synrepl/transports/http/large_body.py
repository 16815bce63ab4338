"""Large bodies of appends, split before they are decoded: a decoder would hold the interpreter for seconds.

The JSON decoder takes half a microsecond for each fact of a body, however small, and nothing else runs
meanwhile. 64 MiB hold 22 million empty ones: 13 seconds. So the facts are cut out of the text first,
bracket by bracket, and no more of them than an append may have. The rest is small, and is decoded as usual.
"""

import re
from typing import Final

import msgspec

from synrepl.transports.http.api_error import ApiError

LARGE_BYTES: Final = 256 * 1024
"""A body, and a fact, of more bytes is not decoded in the reactor's thread."""

MAX_FACTS: Final = 10_000
"""The most facts of a request. They are published in one turn of the reactor, which takes some 50 ms."""

MAX_REST: Final = 1024 * 1024
"""The most bytes of a body besides its facts."""

WINDOW: Final = 64 * 1024
"""Bytes that one match looks at: nothing else runs during a match, not even other threads."""

_text: Final = re.compile(rb'(?>(?:[^"\[\]{}]++|"(?>(?:[^"\\]++|\\.)*)")*)', re.DOTALL)
"""Text without brackets outside of strings; strings are complete.

The groups that repeat are atomic, not possessive: before Python 3.11.5 these match too much when the last
repetition begins to match and fails (gh-106052).
"""
_bracket: Final = re.compile(_text.pattern + rb"[\[\]{}]", re.DOTALL)
_in_string: Final = re.compile(rb'(?>(?:[^"\\]++|\\.)*)', re.DOTALL)
_opening: Final = re.compile(rb'"facts"[ \t\r\n]{0,16}:[ \t\r\n]{0,16}\[\Z')
_depths: Final = (2, 4)
"""The depth of the array `facts` in the bodies of one append and of several."""


def split_facts(body: bytes) -> tuple[bytes, list[list[msgspec.Raw]]]:
    """Cut the facts out of a body: return the body with empty arrays `facts`, and the facts of each.

    Each fact is the text of an array or object, and not checked further. Raises `ApiError` for more than
    `MAX_FACTS`, or for too much besides, or if there is anything else between the facts.
    """
    rest, found = [], []
    depth, array_depth, count = 0, 0, 0
    cut = first = last = 0
    facts: list[msgspec.Raw] = []
    end = 0
    while end := _end_of_bracket(body, end):
        if body[end - 1] in b"[{":
            depth += 1
            if array_depth and depth == array_depth + 1:
                _check_separator(body[last : end - 1], b"," if facts else b"")
                first = end - 1
            elif not array_depth and depth in _depths and _opening.search(body, max(0, end - 48), end):
                array_depth, last, facts = depth, end, []
                rest.append(body[cut:end])
            continue
        depth -= 1
        if array_depth and depth == array_depth:
            facts.append(msgspec.Raw(body[first:end]))
            last = end
            count += 1
            if count > MAX_FACTS:
                raise too_many_facts()
        elif array_depth and depth < array_depth:
            _check_separator(body[last : end - 1], b"")
            found.append(facts)
            array_depth, cut = 0, end - 1
    rest.append(body[cut:])
    if sum(map(len, rest)) > MAX_REST:
        raise ApiError("too_large", f"the body has more than {MAX_REST} bytes besides its facts")
    return b"".join(rest), found


def _end_of_bracket(body: bytes, at: int) -> int:
    """Return the end of the next bracket outside of strings, from outside of a string; 0 without one."""
    if (match := _bracket.match(body, at, at + WINDOW)) is not None:
        return match.end()
    while at < len(body):
        after = _text.match(body, at, at + WINDOW).end()  # type: ignore[union-attr]  # it matches nothing too
        if after == at:
            if body[at : at + 1] != b'"':
                return at + 1
            # A string that is longer than the window.
            after = at + 1
            while body[after : after + 1] != b'"':
                before, after = after, _in_string.match(body, after, after + WINDOW).end()  # type: ignore[union-attr]
                if after == before:
                    return 0
            after += 1
        at = after
    return 0


def too_many_facts() -> ApiError:
    """Make the error for a request with more than `MAX_FACTS`."""
    return ApiError("too_large", f"the request has more than {MAX_FACTS} facts, the limit: send several")


def _check_separator(text: bytes, expected: bytes) -> None:
    if text.strip(b" \t\r\n") != expected:
        raise ApiError("bad_json", "the body is not JSON, or one of its facts is no array")
