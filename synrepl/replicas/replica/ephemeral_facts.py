"""Ephemeral facts that a replica receives: added to memory, with the restarts of their writers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from synrepl.storage.log import Log
from synrepl.streams.facts import NO_ROWS, Fact


@dataclass(frozen=True, eq=False)
class KeptEphemeral:
    """The ephemeral streams of a log (`own_copies.IKeptEphemeral`)."""

    log: Log

    @property
    def names(self) -> Collection[str]:
        """The names of the streams."""
        return self.log.ephemeral.names

    def add(self, facts: Sequence[Fact], *, is_all: bool) -> None:
        """Add the facts of these streams, and reset writers that restarted at the upstream.

        With `is_all` the facts are all that the upstream holds: a writer that is not among them has
        restarted.
        """
        log, streams = self.log, self.names
        facts = [fact for fact in facts if fact.stream in streams]
        if is_all:
            # The writers' positions come last, and show who restarted before the held facts.
            for fact in facts:
                self._reset_if_lower(fact)
            listed = {(fact.stream, fact.writer) for fact in facts}
            for stream in sorted(streams):
                for writer, token in log.positions(stream).items():
                    if token and (stream, writer) not in listed:
                        log.reset_writer(stream, writer)
        for fact in facts:
            self._reset_if_lower(fact)
            if fact.token:
                log.append_assigned(fact.stream, [(fact.writer, fact.token, fact.rows)])

    def _reset_if_lower(self, fact: Fact) -> None:
        if fact.rows == NO_ROWS and fact.token < self.log.positions(fact.stream).get(fact.writer, 0):
            self.log.reset_writer(fact.stream, fact.writer)
