"""What may come next in a log: the serial after the last one, of the same history; and where writers are."""

from collections.abc import Iterable, Sequence

from synrepl.errors import StorageError
from synrepl.storage.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["advance", "check_follow"]


def check_follow(facts: Sequence[Fact], serial: int, digest: str) -> None:
    """`StorageError` unless these facts are what comes next after that serial with that digest."""
    for expected, fact in enumerate(facts, serial + 1):
        if fact.serial != expected:
            raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {expected - 1}")
    # The rest of them was chained to the first where they were made.
    if verify(facts[:1], digest) is not None:
        raise StorageError(op="commit", why=f"serial {serial} is not the one that these facts follow")


def advance(positions: dict[tuple[str, str], int], facts: Iterable[Fact]) -> None:
    """Bring the position of each (stream, writer) up to the highest of its tokens: the last may be late."""
    for fact in facts:
        place = (fact.stream, fact.writer)
        positions[place] = max(fact.token, positions.get(place, fact.token))
