"""The gate of a log: whether appends may go in."""

from collections.abc import Callable

from synrepl.errors import StorageError
from synrepl.storage.append_errors import ReadOnlyHere

Refuse = Callable[[str], StorageError]
"""Makes the error of an append to this stream."""


def starting(stream: str) -> StorageError:
    """Make the error of an append to a daemon that is starting."""
    return ReadOnlyHere("starting", "this daemon is starting: try again", stream=stream)


class AppendGate:
    """Tells a log whether appends may go in.

    It is open, unless it is made with a function that makes the errors of refused appends. A closed gate also
    refuses facts of a source that has given them a token, except those of ephemeral streams. It never refuses
    facts that a copy takes from its upstream (`LogCopies.follow`).
    """

    def __init__(self, refuse: Refuse | None = None) -> None:
        self._refuse = refuse

    @property
    def is_open(self) -> bool:
        """Whether appends may go in."""
        return self._refuse is None

    def refusal(self, stream: str) -> StorageError | None:
        """Return why an append to this stream may not go in now; None if it may."""
        return None if self._refuse is None else self._refuse(stream)

    def open(self) -> None:
        """Let appends in."""
        self._refuse = None

    def close(self, refuse: Refuse) -> None:
        """Refuse appends with the errors that this function makes."""
        self._refuse = refuse


class WriterRules:
    """Says which writers may append to which streams, by the rules that are added to it."""

    def __init__(self) -> None:
        self._rules: list[Callable[[str, str], str]] = []

    def add(self, rule: Callable[[str, str], str]) -> None:
        """Ask this function too: it returns why a writer may not append to a stream; empty if it may."""
        self._rules.append(rule)

    def refusal(self, stream: str, writer: str) -> str:
        """Return why this writer may not append to this stream; empty if it may."""
        return next(filter(None, (rule(stream, writer) for rule in self._rules)), "")
