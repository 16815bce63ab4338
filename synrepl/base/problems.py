"""What a part of the daemon reports: what is wrong with itself, and what needs attention elsewhere."""

from collections.abc import Sequence
from typing import NamedTuple


class Problem(NamedTuple):
    """One problem: a text for an operator, and the Unix time in seconds at which it began.

    `not_ready`: while it lasts this daemon may lack facts, so that ``/readyz`` answers 503.
    """

    text: str
    since: float
    not_ready: bool = False


class Notice(NamedTuple):
    """What needs attention elsewhere, in a line, and what an operator should do about it."""

    text: str
    what_to_do: Sequence[str] = ()
