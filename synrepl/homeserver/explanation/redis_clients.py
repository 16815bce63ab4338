"""The connections to Redis, as ``redis-cli client list`` prints them: who receives, and who only sends.

Docs: docs/howto/explain.md.
"""

import re
from typing import Final

import msgspec

from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage
from synrepl.html.humanize import counted

_CLIENT: Final = re.compile(
    r"id=\d{1,20} addr=\S{1,200} .{0,600}\bsub=(?P<sub>\d{1,9}) psub=(?P<psub>\d{1,9}) "
    r"(?:.{0,600}\bomem=(?P<waiting>\d{1,12})\b)?",
    re.ASCII,
)
RAISE: Final = "until then raise client-output-buffer-limit pubsub of Redis"
MUCH: Final = 1024 * 1024
"""The fewest bytes that wait for a connection which does not keep up."""


class RedisClients(msgspec.Struct):
    """The connections in a text so far, and how many of them have a subscription.

    `waiting` are the most bytes that wait for one of these (omem).
    """

    count: int = 0
    subscribed: int = 0
    waiting: int = 0
    lines: list[int] = []

    def takes(self, line: str, number: int) -> bool:
        """Whether a line is of a connection."""
        found = _CLIENT.match(line.strip("> \t"))
        if found is None:
            return False
        self.count += 1
        is_subscribed = found["sub"] != "0" or found["psub"] != "0"
        self.subscribed += is_subscribed
        if is_subscribed:
            self.waiting = max(self.waiting, int(found["waiting"] or 0))
        if len(self.lines) < MAX_NUMBERS:
            self.lines = [*self.lines, number]
        return True

    def passage(self) -> Passage | None:
        """Say who receives; None if there is no connection."""
        if not self.count:
            return None
        all_of_them = counted(self.count, "connection")
        told = f"{all_of_them} to Redis, of which {self.subscribed} receive (sub of 1 or more);"
        words = [
            f"{told} the others only send, or are of other programs. A process of Synapse has one of each."
        ]
        advice = ["compare the number that receive with that of the processes: synrepl inspect"]
        if not self.subscribed:
            words.insert(0, "No process receives anything over Redis: no connection is subscribed.")
            advice = [
                (
                    "see in the log of each process whether it was subscribed, and restart it; compare"
                    " redis: in the files of all: synrepl inspect --files"
                )
            ]
        elif self.waiting >= MUCH:
            words.insert(
                0,
                f"A connection that receives does not keep up: {self.waiting} bytes wait for it (omem). Redis"
                " closes it at client-output-buffer-limit pubsub (32 MB, or 8 MB for a minute, if not set):"
                " its process then connects again, and fetches what it missed.",
            )
            advice = [f"find its process by addr, and why it does not read (CPU of one core); {RAISE}"]
        return Passage(
            kind="redis_clients",
            text="redis-cli client list",
            words=words,
            advice=advice,
            severity="error" if not self.subscribed else "look" if self.waiting >= MUCH else "",
            lines=self.lines,
            count=self.count,
        )
