"""States of a claim: whether this process may write under its names on a shared channel, as a table.

A shared channel has no server that could refuse a name. With two processes under one name, the others would
take the tokens of both for one sequence, and drop facts of both. So a process that joins asks everybody who
writes, and listens before it writes anything. If it ever hears another process under a name of its own, it
stops, and says so to an operator. The other process may do the same at the same moment: both wait until
they have heard nothing for a while of random length, and the first one asks and listens again.

What is asked and when a time is over is done in `name_claim.py`. Here is what may come of it.
"""

import enum
from collections.abc import Hashable, Mapping
from typing import Final

from synrepl.replication.machine import NamedState, Transitions


class ClaimState(NamedState):
    """Whether this process may write under its names."""

    UNASKED = "unasked", "it has not listened yet: it may not write"
    LISTENING = "listening", "it asked who writes, and listens: it may not write yet"
    GRANTED = "granted", "nobody else uses its names: it may write"
    CONTESTED = "contested", "another process uses one of its names: it waits for that process's silence"
    LISTENING_AGAIN = "listening again", "the other process is silent: it asked again, and listens"


class ClaimEvent(enum.Enum):
    """What happens to a claim."""

    JOINED = "this process has joined the channel"
    CONTEST = "another process wrote under a name of this one"
    LISTENED = "the time of listening is over"
    SILENT = "the other process has been silent for long enough"


_Events = Mapping[Hashable, frozenset[ClaimState]]

_CONTEST: Final[_Events] = {ClaimEvent.CONTEST: frozenset({ClaimState.CONTESTED})}

TRANSITIONS: Final[Transitions[ClaimState]] = {
    ClaimState.UNASKED: {ClaimEvent.JOINED: frozenset({ClaimState.LISTENING}), **_CONTEST},
    # If the channel was left meanwhile, nothing was heard: the next time that it joins, it listens anew.
    ClaimState.LISTENING: {
        ClaimEvent.JOINED: frozenset({ClaimState.LISTENING}),
        ClaimEvent.LISTENED: frozenset({ClaimState.GRANTED, ClaimState.UNASKED}),
        **_CONTEST,
    },
    ClaimState.GRANTED: {ClaimEvent.JOINED: frozenset({ClaimState.GRANTED}), **_CONTEST},
    # Without a connection it cannot ask, and waits as long again.
    ClaimState.CONTESTED: {
        ClaimEvent.JOINED: frozenset({ClaimState.CONTESTED}),
        ClaimEvent.SILENT: frozenset({ClaimState.LISTENING_AGAIN, ClaimState.CONTESTED}),
        **_CONTEST,
    },
    ClaimState.LISTENING_AGAIN: {
        ClaimEvent.JOINED: frozenset({ClaimState.LISTENING_AGAIN}),
        ClaimEvent.LISTENED: frozenset({ClaimState.GRANTED, ClaimState.CONTESTED}),
        **_CONTEST,
    },
}
