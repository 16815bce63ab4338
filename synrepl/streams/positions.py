"""Vector clocks: positions by stream and writer."""

from collections.abc import Iterator, Mapping
from typing import Any


class VClock:
    """A vector clock: the last token of each writer of each stream. Immutable; changes return a new clock.

    >>> clock = VClock({"receipts": {"master": 54}})
    >>> clock.advanced("receipts", "worker1", 3).to_json()
    {'receipts': {'master': 54, 'worker1': 3}}
    >>> clock.covers(VClock({"receipts": {"master": 50}}))
    True
    """

    __slots__ = ("_tokens",)

    def __init__(self, tokens: Mapping[str, Mapping[str, int]] | None = None) -> None:
        # Streams without writers are left out, so that equal clocks compare equal.
        self._tokens = {stream: dict(writers) for stream, writers in (tokens or {}).items() if writers}

    @classmethod
    def _of(cls, tokens: dict[str, dict[str, int]]) -> "VClock":
        clock = cls.__new__(cls)
        clock._tokens = tokens
        return clock

    def get(self, stream: str, writer: str) -> int | None:
        """The position of a writer, or None if it is unknown."""
        writers = self._tokens.get(stream)
        return None if writers is None else writers.get(writer)

    def advanced(self, stream: str, writer: str, token: int) -> "VClock":
        """Return a clock with one writer at `token` or later. Never moves back, unlike `with_position`."""
        known = self.get(stream, writer)
        if known is not None and known >= token:
            return self
        return self.with_position(stream, writer, token)

    def with_position(self, stream: str, writer: str, token: int) -> "VClock":
        """Return a clock with one writer at exactly `token`, for streams whose tokens may go back."""
        return self._of({**self._tokens, stream: {**self._tokens.get(stream, {}), writer: token}})

    def merge(self, other: "VClock") -> "VClock":
        """Return a clock with the later position of each writer."""
        tokens = {stream: dict(writers) for stream, writers in self._tokens.items()}
        for stream, writer, token in other:
            writers = tokens.setdefault(stream, {})
            writers[writer] = max(token, writers.get(writer, token))
        return self._of(tokens)

    def covers(self, other: "VClock") -> bool:
        """Whether no writer is further in `other`. A writer that only `other` has counts as further."""
        for stream, writer, token in other:
            known = self.get(stream, writer)
            if known is None or known < token:
                return False
        return True

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """``(stream, writer, token)``, sorted."""
        for stream, writers in sorted(self._tokens.items()):
            for writer, token in sorted(writers.items()):
                yield stream, writer, token

    def __len__(self) -> int:
        return sum(len(writers) for writers in self._tokens.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VClock) and self._tokens == other._tokens

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"VClock({self.to_json()!r})"

    def to_json(self) -> dict[str, dict[str, int]]:
        """Plain JSON: ``{stream: {writer: token}}``, sorted."""
        return {stream: dict(sorted(writers.items())) for stream, writers in sorted(self._tokens.items())}

    @classmethod
    def from_json(cls, value: Any) -> "VClock":
        """Parse the result of `to_json`. Raises ValueError with a readable message."""
        if not isinstance(value, dict):
            raise ValueError(f"positions must be an object of streams, not {type(value).__name__}")
        for stream, writers in value.items():
            if not isinstance(stream, str) or not stream:
                raise ValueError(f"{stream!r} is not the name of a stream")
            if not isinstance(writers, dict):
                raise ValueError(
                    f"positions of {stream} must be an object of writers, not {type(writers).__name__}"
                )
            for writer, token in writers.items():
                if not isinstance(writer, str) or not writer:
                    raise ValueError(f"{writer!r} is not the name of a writer of {stream}")
                # bool is a subclass of int, but true is not a token.
                if not isinstance(token, int) or isinstance(token, bool):
                    raise ValueError(
                        f"the position of {writer} in {stream} must be a whole number, not {token!r}"
                    )
                if not -(2**63) <= token < 2**63:
                    raise ValueError(f"the position of {writer} in {stream} does not fit 64 bits")
        return cls(value)
