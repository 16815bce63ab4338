"""Runs of RDATA: consecutive lines of one stream and writer, parsed together for speed."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Final, cast

import msgspec

from synrepl.wire.commands import Rdata
from synrepl.wire.grammar import CommandForm

_read_numbers: Final = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(le=2**63 - 1)]]).decode
"""Reads a JSON array of tokens, in a third of the time of `int` for each."""


class RdataRun(msgspec.Struct, frozen=True):
    """Consecutive RDATA lines of one stream and writer.

    Equivalent to its `commands`. A token is None where the line has ``batch``.
    """

    stream: str
    instance: str
    tokens: list[int | None]
    rows: list[bytes]

    def commands(self) -> Iterator[Rdata]:
        """The lines as single commands."""
        for token, row in zip(self.tokens, self.rows, strict=True):
            yield Rdata(stream=self.stream, instance=self.instance, token=token, row=row)


class RunParser:
    """Parses RDATA as one release writes it (`form`). Unusual lines are left to `form`."""

    def __init__(self, form: CommandForm) -> None:
        names = [field.name for field in form.fields]
        assert names[-2:] == ["token", "row"]
        self._words = len(names) - 2
        self._has_instance = "instance" in names
        self._default_instance = next(f.default for f in form.command.FIELDS if f.name == "instance")
        self._read_token = form.fields[-2].kind.parse

    def read(self, lines: Sequence[bytes], start: int) -> RdataRun | Rdata | None:
        """Parse the run that starts at this line, or this line if it is alone; None if a line is unusual."""
        first = lines[start]
        head = first.split(b" ", self._words + 1)
        if len(head) != self._words + 2 or not all(head):
            return None
        prefix = first[: len(first) - len(head[-1])]
        stream = head[1].decode()
        instance = head[2].decode() if self._has_instance else self._default_instance
        if start + 1 >= len(lines) or not lines[start + 1].startswith(prefix):
            word, _, row = head[-1].partition(b" ")
            try:
                token = self._read_token(word)
            except ValueError:
                return None
            return Rdata(stream=stream, instance=instance, token=token, row=row) if row else None
        words: list[bytes] = []
        rows: list[bytes] = []
        for line in islice(lines, start, None):
            rest = line.removeprefix(prefix)
            if rest == line:
                break
            word, _, row = rest.partition(b" ")
            if not row:
                break
            words.append(word)
            rows.append(row)
        tokens = self._tokens(words)
        if len(tokens) < 2:
            return None
        return RdataRun(stream=stream, instance=instance, tokens=tokens, rows=rows[: len(tokens)])

    def _tokens(self, words: list[bytes]) -> list[int | None]:
        """Parse the tokens up to the first invalid one."""
        if b"".join(words).isdigit():
            try:
                return cast("list[int | None]", _read_numbers(b"[" + b",".join(words) + b"]"))
            except msgspec.DecodeError:
                pass  # a missing token, one with a leading zero, or one that is too large
        tokens: list[int | None] = []
        for word in words:
            try:
                tokens.append(self._read_token(word))
            except ValueError:
                break
        return tokens
