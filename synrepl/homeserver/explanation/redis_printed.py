"""A command of redis-cli of which a text has the output, and what all of these share."""

from typing import ClassVar, Final

import msgspec

from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage

RAISE: Final = "until then raise client-output-buffer-limit pubsub of Redis"
MUCH: Final = 1024 * 1024
"""The fewest bytes that wait for a connection which does not keep up."""
MAX_SHOWN: Final = 3
"""The most published lines that are explained one by one, and the most channels that are named."""
MAX_KEPT: Final = 1000
"""The most different channels, connections and commands that are told apart."""
OF_SYNAPSE: Final = (
    "A process of Synapse subscribes to the channel that its server_name names, and publishes to it on a"
    " second connection; since 1.60 the process with the background work subscribes to /USER_IP as well."
)


class RedisPrinted(msgspec.Struct):
    """What one command of redis-cli printed, as far as it was read, and what is said of it."""

    kind: ClassVar[str]
    command: ClassVar[str]
    lines: list[int] = []
    count: int = 0

    def takes(self, line: str, number: int) -> bool:
        """Whether a line is of this output, and needs no other explanation."""
        raise NotImplementedError

    def passage(self) -> Passage | None:
        """What is said of it; None if there is nothing to say."""
        raise NotImplementedError

    def passages(self) -> list[Passage]:
        """What is said of it, as a list."""
        found = self.passage()
        return [] if found is None else [found]

    def add(self, number: int) -> None:
        """Count a line of it."""
        self.count += 1
        if len(self.lines) < MAX_NUMBERS:
            self.lines = [*self.lines, number]

    def told(self, words: list[str], advice: list[str], severity: str) -> Passage:
        """The passage with these words."""
        return Passage(
            kind=self.kind,
            text=self.command,
            words=words,
            advice=advice,
            severity=severity,
            lines=self.lines,
            count=self.count,
        )
