"""The words for what a replica is doing; operators see them as they are."""

from typing import Final

__all__ = ["STATES", "WAYS_OUT"]

STATES: Final = {
    "connecting": "it tries to reach its upstream",
    "ready": "its upstream and it know each other",
    "snapshot": "joining: it takes what there was when it began",
    "meanwhile": "joining: it takes what came while the snapshot was under way",
    "adopting": "joining: the copy is whole, and takes the place of what was here",
    "catching up": "it takes what it lacks",
    "live": "it has what there is, and takes what comes",
    "disconnected": "its upstream cannot be reached; it tries again",
    "refused": "its upstream cannot serve it just now; it tries again",
    "stopped": "its upstream can never serve it as it is: an operator must decide",
    "off": "it follows nobody",
}
"""The life of a replica. Joining comes before subscribing; every state but the last can end in one of the
three before it."""

RESYNC: Final = "synrepl resync writes what only this copy has to a file, and joins anew"

WAYS_OUT: Final = {
    "fork": RESYNC,
    "ahead": f"{RESYNC}; if this copy is the right one, synrepl promote --force makes this daemon primary",
    "other_history": f"if --upstream is wrong, start with another one; if it is meant, {RESYNC}",
}
"""What an operator can do with a replica that has stopped, by the code of the refusal that stopped it."""
