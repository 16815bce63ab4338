"""ReferredFiles: which files the rows of a log refer to, fact by fact."""

from collections.abc import Collection, Iterable
from typing import Any

from synrepl.errors import RowError
from synrepl.streams.catalog import DECLARATIONS, FILES
from synrepl.streams.declaration import Declaration, file_columns
from synrepl.streams.facts import Fact, decode_facts
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST


class ReferredFiles:
    """The names that facts give to files, as they are after the last fact that was taken.

    They are those of the stream ``files``; and in rows of declared streams, each column of the type ``file``
    of each key.
    """

    def __init__(self) -> None:
        self._checksums: dict[tuple[str, str], str] = {}
        """By stream and name."""
        self._declared: dict[str, Declaration] = {}
        """The declared streams that have such columns."""
        self._words = [_word(FILES.name), _word(DECLARATIONS.name)]
        """With one of these begins whatever fact is of interest."""

    def take_block(self, data: bytes) -> None:
        """Take the lines of a block of facts."""
        if any(word in data for word in self._words):
            for line in data.splitlines(keepends=True):
                if any(word in line for word in self._words):
                    self.take(decode_facts(line))

    def take(self, facts: Iterable[Fact]) -> None:
        """Take facts, in the order of the log."""
        for fact in facts:
            if fact.stream == FILES.name:
                for _, name, checksum, _ in jsontext.loads(fact.rows):
                    self._set(fact.stream, name, checksum)
            elif fact.stream == DECLARATIONS.name:
                self._declare(fact)
            elif fact.stream in self._declared:
                self._refer(fact, self._declared[fact.stream])

    def missing(self, stored: Collection[str]) -> dict[str, str]:
        """Return the names, in order, and the checksums of the files that are not among the stored ones."""
        return dict(
            sorted(
                (name if stream == FILES.name else f"{stream} {name}", checksum)
                for (stream, name), checksum in self._checksums.items()
                if checksum not in stored
            )
        )

    def _declare(self, fact: Fact) -> None:
        for text in jsontext.split(fact.rows):
            try:
                declared: Any = DECLARATIONS.decode(text, NEWEST)
            except RowError:
                continue  # one of a later release
            if file_columns(declared) and declared.name not in self._declared:
                self._words.append(_word(declared.name))
                self._declared[declared.name] = declared

    def _refer(self, fact: Fact, declared: Declaration) -> None:
        for number, row in enumerate(jsontext.loads(fact.rows)):
            values = dict(zip(declared.columns or (), row, strict=False))
            key = [values.get(column) for column in declared.key] or [fact.serial, number]
            for column in file_columns(declared):
                file = values.get(column)
                checksum = None if file is None else file["sha256"]
                self._set(fact.stream, f"{jsontext.dumps(key).decode()} {column}", checksum)

    def _set(self, stream: str, name: str, checksum: str | None) -> None:
        if checksum is None:
            self._checksums.pop((stream, name), None)
        else:
            self._checksums[stream, name] = checksum


def _word(stream: str) -> bytes:
    return b'"stream":"%b"' % stream.encode()
