"""PostgreSQL's sequences that are behind a table or a stored position."""

import re
from collections.abc import Mapping
from typing import Final

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import INTEGER, Writers
from synrepl.homeserver.streams import POSITION_NAMES, position_query

_INCONSISTENT: Final = re.compile(
    r"Postgres sequence '(?P<sequence>\w{1,100})' is inconsistent with associated\s+(?:stream position\s+of"
    r" '(?P<stream>\w{1,100})'|table '(?P<table>\w{1,100})')",
    re.ASCII,
)

_SEQUENCE_BEHIND: Final = re.compile(
    rf"Postgres sequence (?P<sequence>\w{{1,100}}) is behind table (?P<table>\w{{1,100}}):"
    rf" (?P<current>{INTEGER}) < (?P<given>{INTEGER})",
    re.ASCII,
)

SEQUENCE_QUERY: Final = "SELECT last_value, is_called FROM {}"


def _inconsistent(match: Match, writers: Writers) -> Passage | None:
    found = _INCONSISTENT.search(match.text)
    if found is None:
        return None
    sequence = found["sequence"]
    stored = found["stream"] or ""
    what = f"a stored position of {stored} (table stream_positions)" if stored else ""
    words = [
        (
            f"Synapse refuses to start: the sequence {sequence} is behind"
            f" {what or 'an id in the table ' + found['table']}."
        ),
        (
            "It would give out ids a second time. PostgreSQL logs sequences 32 values ahead: a switch-over,"
            " a restore or a port of the database can leave this behind."
        ),
    ]
    advice = [match.message.do, SEQUENCE_QUERY.format(sequence)]
    if stored:
        advice.append(position_query([stored]))
        advice.append(
            "do not delete the stored positions, as the message proposes: that leaves the sequence behind"
            " tokens that clients and workers have received"
        )
    row = {"sequence": sequence, "behind": stored or found["table"], "stream": _wire_name(stored)}
    return passage_of(match, words, advice, [row])


def _sequence_behind(match: Match, writers: Writers) -> Passage | None:
    found = _SEQUENCE_BEHIND.search(match.text)
    if found is None:
        return None
    sequence, table = found["sequence"], found["table"]
    current, given = int(found["current"]), int(found["given"])
    is_raised = "Updating sequence" in match.text
    words = [
        (
            f"The sequence {sequence} is {given - current:,} behind: it is at {current}, the table {table}"
            f" has {given}."
        ),
        (
            "Synapse raises it by itself (since 1.109)."
            if is_raised
            else "This release does not raise it: Synapse refuses to start (1.21 to 1.108)."
        ),
    ]
    row = {"sequence": sequence, "at": current, "table": table, "highest_id": given}
    return passage_of(match, words, [match.message.do], [row])


def _wire_name(stored: str) -> str:
    return next((name for name, other in POSITION_NAMES.items() if other == stored), stored)


DETAILS: Final[Mapping[str, Detail]] = {
    "sequence_table": _inconsistent,
    "sequence_position": _inconsistent,
    "sequence_behind": _sequence_behind,
}
"""What explains messages by their values, by the key of the message."""
