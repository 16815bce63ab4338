"""Acks: whose acknowledgements an append waits for."""

from typing import Final, NamedTuple

from synrepl.wire.text import is_name

MAX_ACKS: Final = 100
"""The largest number of replicas, and of names, that an append can wait for."""


class Acks(NamedTuple):
    """The replicas that must have a fact on disk: any `number` of them, or all of these `names`.

    Written as ``2``, or as ``paris,oslo``. A name must not be a number.
    """

    number: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Acks":
        """Parse the result of `str`. Raises `ValueError` with a text that follows the parameter's name."""
        if text.isascii() and text.isdecimal():
            if len(text) > 3 or int(text) > MAX_ACKS:
                raise ValueError(f"must be at most {MAX_ACKS} replicas, not {text[:40]}")
            return cls(int(text))
        names = tuple(sorted(set(text.split(","))))
        if not all(map(is_name, names)) or any(name.isdecimal() for name in names):
            raise ValueError(f"must be a number of replicas, or their names with commas, not {text[:40]!r}")
        if len(names) > MAX_ACKS:
            raise ValueError(f"must name at most {MAX_ACKS} replicas, not {len(names)}")
        return cls(len(names), names)

    def __str__(self) -> str:
        return ",".join(self.names) or str(self.number)


NO_ACKS: Final = Acks()
"""An append waits for no replica."""
