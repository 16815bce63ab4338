"""The passage of one message, and the type of what makes it of the message's values."""

from collections.abc import Callable
from typing import Any, TypeAlias

from synrepl.homeserver.explanation.excerpts import MAX_TEXT, without_secrets
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.wire.text import printable

Detail: TypeAlias = Callable[[Match, Writers], Passage | None]
"""Explains a message by its values; None if the data says all."""


def passage_of(match: Match, words: list[str], advice: list[str], fields: list[dict[str, Any]]) -> Passage:
    """Return the passage of a message with these words, steps and rows of a table."""
    return Passage(
        kind=match.message.key,
        severity=match.message.severity,
        text=printable(without_secrets(" ".join(match.text[:MAX_TEXT].split()))),
        words=words,
        advice=advice,
        fields=fields,
    )
