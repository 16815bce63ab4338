"""What a follower's subscribers receive, and where it fetches missing facts."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec

from synrepl.errors import NotConnected

R = TypeVar("R")


# Without `gc`, which rows of JSON do not need, the garbage collector need not look at thousands of facts.
class Updates(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """One complete fact: its `rows` (typed, unless the follower is `raw` or `canonical`) and its source.

    The follower's position does not advance over a fact before all subscribers have applied it. A fact may be
    delivered again after a crash, and is if the subscriber raises (at least once)::

        @follower.on(RECEIPTS)
        def show(updates: Updates[Receipt]) -> None:
            for row in updates.rows:
                print(updates.writer, updates.token, row.room_id)
    """

    stream: str
    writer: str
    token: int
    rows: list[R]


Subscriber = Callable[[Updates[Any]], Awaitable[None] | None]

Batch = Sequence[Updates[Any]]
"""Consecutive facts of one stream."""

BatchSubscriber = Callable[[Batch], Awaitable[None] | None]

RawFact = tuple[str, int, list[bytes]]
"""A fact as it arrived: writer, token, and rows as JSON texts."""


class NowhereToFetch(NotConnected):
    """No source for the missing facts of this writer is known; a retry cannot help."""

    retryable = False


class MissedFacts(msgspec.Struct, frozen=True):
    """A page of missing facts: ``(token, rows as JSON texts)``, in the order to apply them.

    `upto` is the token up to which the page is complete, but for what the source has `lost`: facts after the
    first up to the second token of each pair. `limited`: more facts follow.
    """

    facts: list[tuple[int, list[bytes]]]
    upto: int
    limited: bool
    lost: Sequence[tuple[int, int]] = ()

    @classmethod
    def of_rows(
        cls,
        rows: Iterable[tuple[int, bytes]],
        upto: int,
        *,
        limited: bool,
        lost: Sequence[tuple[int, int]] = (),
    ) -> "MissedFacts":
        """Make a page of rows with their tokens. Adjacent rows of one token are a fact."""
        facts = [(token, [row for _, row in group]) for token, group in groupby(rows, key=itemgetter(0))]
        return cls(facts, upto, limited, lost)


class ICatchUp(Protocol):
    """A source of missing facts."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch the facts with ``after < token <= upto``, or a `limited` page with the first of them.

        Raises `ReplicationError`, and `NowhereToFetch` if a retry cannot help.
        """


class FollowerEvent(msgspec.Struct, frozen=True):
    """An event of a follower other than a fact. `kind` is one of:

    * ``connected``; ``disconnected``, also after each failed attempt to connect (`text` is the reason);
    * ``server``: the server's name, in `text`;
    * ``position``: a POSITION was processed; `writer` of `stream` is at `token`;
    * ``restarted``: `writer` restarted `stream`, and its tokens begin again;
    * ``went_back``: the position of `writer` in `stream` fell to `token`: its later facts are lost, although
      they may have been delivered (`text` says so);
    * ``behind``: the server's `writer` of `stream` is at `token`, below what was applied: a copy that lags,
      or a log that was put back to an older copy (`text` says what that means);
    * ``lost``: facts of `writer` up to `token` cannot be read or fetched, and are skipped; `error` says which
      ones, and why; `rows` are those of a fact that came and could not be read, as they were sent;
    * ``moved``: the server must not be followed any more, or not now; `text` says why, and where it says that
      the primary is;
    * ``error``: `text` is the message, `error` the exception, if any.

    `code` is set if no retry can succeed until somebody changes a configuration: ``wrong_server``,
    ``unknown_stream``, ``forbidden``, ``tls`` or ``bad_port``. If it is empty, a retry may succeed.
    """

    kind: Literal[
        "connected",
        "disconnected",
        "server",
        "position",
        "restarted",
        "went_back",
        "behind",
        "lost",
        "moved",
        "error",
    ]
    text: str = ""
    stream: str = ""
    writer: str = ""
    token: int = 0
    error: Exception | None = None
    code: str = ""
    rows: Sequence[bytes] = ()


REFUSALS: Final = {
    "unknown_stream": re.compile(r"unknown stream "),
    "forbidden": re.compile(
        r"lacks the right |this takes the right |the certificate of .* is not in keys_file"
    ),
}
"""The texts of ERROR lines that no retry changes, by code: such lines have no code of their own."""


def code_of(error: str) -> str:
    """Return the code for the text of an ERROR line; empty if a retry may succeed."""
    return next((code for code, text in REFUSALS.items() if text.search(error)), "")
