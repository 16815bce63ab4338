"""Replicas and leases in the status: who may see them, and what needs attention."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from synrepl.base.access import Access
from synrepl.base.problems import Notice
from synrepl.html.humanize import counted, span
from synrepl.replicas.relay.leases import WARN_AT
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.roles.manager import RoleManager

SHOWN: Final = 200
"""Replicas and leases listed, those in the worst state first; the rest are counted."""

LOST_REPLICA: Final = (
    "start the lost replica again, or, if it is gone for good, end its lease, which retains facts for it:"
    " synrepl leases drop NAME (manual: howto/replicas)"
)
ENDED_REPLICA: Final = (
    "a replica whose lease has ended must join again when it is back: synrepl leases add NAME admits one that"
    " was dropped (manual: howto/replicas)"
)
ADVICE: Final = {"lost": LOST_REPLICA, "ended": ENDED_REPLICA}
"""What an operator should do about replicas in these states."""

REPLICA_TROUBLES: Final = ("ended", "lost", "behind")
"""The states of replicas that need attention, the worst first. A ``never seen`` replica may still connect."""

STATE_WORDS: Final = {"ended": "whose lease has ended"}
"""How a sentence says a state of a replica, where the word alone is not clear."""

BEHIND_SECONDS: Final = 1.0
"""A replica that is fewer seconds behind than this needs no attention."""

Described = Mapping[str, Any]
"""A replica or a lease, as the status has it."""


def own_readers(described: Iterable[dict[str, Any]], access: Access) -> list[dict[str, Any]]:
    """Return the replicas or leases that the peer may see: all, or those of its key if that is limited."""
    return [one for one in described if access.streams is None or one["key"] == access.key]


def describe(roles: RoleManager, registry: ReplicaRegistry, access: Access) -> dict[str, Any]:
    """Return the keys of the status, as far as a peer with these rights may see them."""
    replica = roles.replica
    replicas = own_readers(registry.status(), access)
    leases = own_readers(registry.describe_leases(), access)
    return {
        "why": roles.why,
        "name": roles.name,
        "address": str(roles.address()),
        "primary": str(roles.primary),
        "upstream": None if replica is None else replica.status(),
        "replicas": replicas[:SHOWN],
        "more_replicas": max(0, len(replicas) - SHOWN),
        "leases": leases[:SHOWN],
        "more_leases": max(0, len(leases) - SHOWN),
        "backups": own_readers(registry.backups(), access)[:SHOWN],
        "unnotified": [str(address) for address in roles.notifier.unnotified],
    }


def backup_problem(backups: Sequence[Described], most_seconds: float | None, now: float, began: float) -> str:
    """Return why the newest backup is too old; empty if it is not, or if nobody asked.

    A daemon that began at `began`, and knows of no backup, has time for one.
    """
    if most_seconds is None:
        return ""
    age = min((one["age_seconds"] for one in backups), default=now - began)
    if age <= most_seconds:
        return ""
    what = f"the newest backup is {span(age)} old" if backups else f"no backup was made for {span(age)}"
    return f"{what}, and should be at most {span(most_seconds)}: run synrepl backup (manual: howto/backup)"


def notices(replicas: Iterable[Described], leases: Iterable[Described]) -> Iterator[Notice]:
    """Return which replicas and leases need attention."""
    states = Counter(
        replica["state"]
        for replica in replicas
        # Under load a replica is always a moment behind.
        if replica["state"] != "behind" or replica["lag_seconds"] >= BEHIND_SECONDS
    )
    counts = [(states[state], state) for state in REPLICA_TROUBLES if states[state]]
    if counts:
        (first, state), *others = ((count, STATE_WORDS.get(state, state)) for count, state in counts)
        others_text = (f", {count:,} {other}" for count, other in others)
        what_to_do = [text for one, text in ADVICE.items() if states[one]]
        yield Notice(f"{counted(first, 'replica')} {state}{''.join(others_text)}", what_to_do)
    if used := sum(lease["ended"] is None and lease["used"] >= WARN_AT for lease in leases):
        yield Notice(f"{counted(used, 'lease')} nearly used up")
