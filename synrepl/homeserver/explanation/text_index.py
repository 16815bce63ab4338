"""Which of thousands of patterns a text may have: by its first characters, or by the words in it."""

import re
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

_HEAD: Final = 4


class IPattern(Protocol):
    """A pattern in which values stand between literals."""

    literals: list[str]

    @property
    def words(self) -> list[str]:
        """The whole words (`WORD`) that each text with this pattern has."""


P = TypeVar("P", bound=IPattern)

WORD: Final = re.compile(r"\w+", re.ASCII)


class HeadIndex(Generic[P]):
    """Patterns by the first characters of a text, in the order given."""

    def __init__(self, patterns: Iterable[P]) -> None:
        by_head: dict[str, list[tuple[int, P]]] = {"": []}
        for place, one in enumerate(patterns):
            head = one.literals[0][:_HEAD]
            by_head.setdefault(head if len(head) == _HEAD else "", []).append((place, one))
        headless = by_head.pop("")
        self._headless = [one for _, one in headless]
        # A text that is shorter than a head can only be of a pattern that has as little of its own.
        self._short = [one for one in self._headless if sum(map(len, one.literals)) < _HEAD]
        self._by_head = {head: _in_order([*headless, *found]) for head, found in by_head.items()}

    def __getitem__(self, text: str) -> list[P]:
        """Return the patterns that a text may have at its beginning."""
        return self._by_head.get(text[:_HEAD], self._headless if len(text) >= _HEAD else self._short)


class WordIndex(Generic[P]):
    """Patterns by the rarest of their words, in the order given."""

    def __init__(self, patterns: Iterable[P]) -> None:
        words = [(place, one, one.words) for place, one in enumerate(patterns)]
        counts = Counter(word for *_, found in words for word in found)
        self._by_word: dict[str, list[tuple[int, P]]] = {}
        for place, one, found in words:
            rarest = min(found, key=lambda word: (counts[word], -len(word)), default="")
            self._by_word.setdefault(rarest, []).append((place, one))

    def __getitem__(self, text: str) -> list[P]:
        """Return the patterns that a text may have somewhere."""
        by_word = self._by_word
        words = {"", *WORD.findall(text)}
        return _in_order([one for word in words if word in by_word for one in by_word[word]])


def _in_order(placed: list[tuple[int, P]]) -> list[P]:
    return [one for _, one in sorted(placed, key=itemgetter(0))]
