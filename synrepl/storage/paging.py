"""Page sizes of reads: limits are in rows, and facts and shared tokens stay whole."""

from collections.abc import Iterable

from synrepl.streams.facts import Fact

__all__ = ["take_rows", "take_tokens"]

ROW_BYTES = 200
"""The number of JSON bytes that count as one row: near enough, and needs no parsing."""


def take_rows(facts: Iterable[Fact], limit: int) -> tuple[list[Fact], bool]:
    """The first facts up to the one that reaches `limit` rows, and whether the limit was reached."""
    page = []
    for fact in facts:
        page.append(fact)
        limit -= len(fact.rows) // ROW_BYTES or 1
        if limit <= 0:
            return page, True
    return page, False


def take_tokens(facts: Iterable[Fact], limit: int) -> tuple[list[Fact], bool]:
    """Like `take_rows` for facts in order of token, but facts that share a token stay together.

    Returns the facts and whether there are more.
    """
    page: list[Fact] = []
    for fact in facts:
        if limit <= 0 and fact.token != page[-1].token:
            return page, True
        page.append(fact)
        limit -= len(fact.rows) // ROW_BYTES or 1
    return page, False
