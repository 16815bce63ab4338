"""Problems: what a part of the daemon reports of itself when something is wrong."""

from typing import NamedTuple


class Problem(NamedTuple):
    """One problem: a text for an operator, and the Unix time in seconds at which it began.

    `not_ready`: while it lasts this daemon may lack facts, so that ``/readyz`` answers 503.
    """

    text: str
    since: float
    not_ready: bool = False
