"""Roles of a daemon, and what moves it from one to another, as a table.

At most one daemon of a log may accept facts, and there is nobody to ask which one: no quorum, and no arbiter.
Epochs decide. Whoever becomes primary begins an epoch above all that it has seen, and says so to every daemon
that it knows, until each of them has heard it; of two primaries the one with the lower epoch (in the same
epoch, the lower uuid) gives way. It does not become a replica by itself, because it may have facts that
nobody else has: it is *fenced*, serves nobody, and waits for an operator. A replica has nothing to lose, and
follows the later primary at once.

A primary learns in three ways that another daemon is primary. A claim comes, from that daemon or from one
that follows it, and is believed and judged (`claims.py`). It asks the daemons that its
operator has listed, at its start, each minute, and at each sign of another one (`rivals.py`). Or it has
handed over itself: then it has taken no fact since before the other one began (`handover.py`).

So a role changes in four ways only: an operator promotes (`promotion.py`), a claim of a later primary fences
or is followed, an operator gives up the facts of a fenced daemon, and at its start a daemon takes the role
that it had. What is accepted meanwhile (a hand-over, the inquiry of a starting primary) is not a role: it
closes the log for a moment, and `RoleManager` asks those who do it.
"""

import enum
from typing import Final

from synrepl.replication.machine import NamedState, Transitions


class Role(NamedState):
    """The role of a daemon. Operators see the words, and they are stored and sent to other daemons."""

    PRIMARY = "primary", "the one daemon of its log that accepts facts"
    REPLICA = "replica", "follows the primary, or another replica, and forwards what is written to it"
    FENCED = "fenced", "was primary, and another daemon is: serves nobody until an operator decides"


class RoleEvent(enum.Enum):
    """What happens to the role of a daemon."""

    START = "the daemon starts, and takes the role that its log remembers, or else that of its settings"
    PROMOTE = "an operator has made it primary, and its epoch has begun"
    FENCE = "another daemon is primary, in a later epoch"
    FOLLOW = "it follows another daemon from now on, or the same again after a promotion that failed"
    RESYNC = "an operator gives up the facts that only this daemon has"


TRANSITIONS: Final[Transitions[Role]] = {
    Role.PRIMARY: {
        RoleEvent.START: frozenset({Role.PRIMARY, Role.REPLICA, Role.FENCED}),
        RoleEvent.FENCE: frozenset({Role.FENCED}),
    },
    Role.REPLICA: {
        RoleEvent.PROMOTE: frozenset({Role.PRIMARY}),
        RoleEvent.FOLLOW: frozenset({Role.REPLICA}),
    },
    Role.FENCED: {
        # A still later primary, or the address of the one that is known.
        RoleEvent.FENCE: frozenset({Role.FENCED}),
        RoleEvent.PROMOTE: frozenset({Role.PRIMARY}),
        RoleEvent.RESYNC: frozenset({Role.REPLICA}),
    },
}
