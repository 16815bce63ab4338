"""How much one read gives: a limit counted in rows, facts and shared tokens kept whole."""

from collections.abc import Iterable

from synrepl.streams.facts import Fact

__all__ = ["take_rows", "take_tokens", "weight"]

ROW_BYTES = 200
"""JSON bytes that count as one row: near enough, and no JSON need be parsed to know it."""


def weight(fact: Fact) -> int:
    """About how many rows a fact holds; at least one."""
    return len(fact.rows) // ROW_BYTES or 1


def take_rows(facts: Iterable[Fact], limit: int) -> tuple[list[Fact], bool]:
    """The first facts, up to the one with which `limit` rows are reached, and whether that stopped it."""
    taken = []
    for fact in facts:
        taken.append(fact)
        limit -= len(fact.rows) // ROW_BYTES or 1
        if limit <= 0:
            return taken, True
    return taken, False


def take_tokens(facts: Iterable[Fact], limit: int) -> tuple[list[Fact], bool]:
    """As `take_rows`, but facts that share a token stay together; and whether any are left.

    `facts` come in order of token.
    """
    taken: list[Fact] = []
    for fact in facts:
        if limit <= 0 and fact.token != taken[-1].token:
            return taken, True
        taken.append(fact)
        limit -= len(fact.rows) // ROW_BYTES or 1
    return taken, False
