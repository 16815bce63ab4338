"""What some messages of Synapse's log say beyond their meaning: values compared, who writes, what to look at.

`DETAILS` has them by the key of the message; each module has those of its own. Docs: docs/howto/explain.md.
"""

import re
from collections.abc import Mapping
from typing import Final

from synrepl.homeserver.explanation import (
    addresses,
    app_services,
    background_tasks,
    configuration,
    database,
    database_connections,
    federation,
    misrouted_requests,
    protocol_errors,
    redis_server,
    sent_requests,
    sequences,
    served_requests,
    stream_lag,
    worker_storage,
)
from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match, find_message
from synrepl.homeserver.explanation.pasted_lines import Header, LoggedText
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers

_RAISED: Final = re.compile(
    r"\b\w{0,80}(?:Exception|Error)\(u?(?P<quote>['\"])(?P<text>.{1,500}?)(?P=quote)", re.ASCII
)
"""An exception as Python shows it within a text."""


def _remote_error(match: Match, writers: Writers) -> Passage | None:
    """Explain an error of replication over TCP by its text."""
    raised = _RAISED.search(match.text)
    reason = find_message(LoggedText(raised["text"], Header())) if raised else None
    inner = explained(reason, writers) if reason is not None else None
    if inner is None:
        return None
    return passage_of(match, [match.message.means, *inner.words], inner.advice, [])


NOT_BY_DATA: Final = frozenset(("unknown_stream_position", "request", "proxy_request", "db_pooler_file"))
"""Messages of which only some values tell something."""

DETAILS: Final[Mapping[str, Detail]] = {
    **addresses.DETAILS,
    **app_services.DETAILS,
    **background_tasks.DETAILS,
    **configuration.DETAILS,
    **database.DETAILS,
    **database_connections.DETAILS,
    **federation.DETAILS,
    **misrouted_requests.DETAILS,
    **protocol_errors.DETAILS,
    **redis_server.DETAILS,
    **sent_requests.DETAILS,
    **sequences.DETAILS,
    **served_requests.DETAILS,
    **stream_lag.DETAILS,
    **worker_storage.DETAILS,
    "tcp_remote_error": _remote_error,
}
"""What explains a message by its values; None: what the data says is all."""


def explained(match: Match, writers: Writers) -> Passage | None:
    """Explain a message by its values, or else by its data; None if it is, by its values, another message."""
    message = match.message
    is_read = message.key in DETAILS and not match.is_cut
    passage = DETAILS[message.key](match, writers) if is_read else None
    if passage is not None or message.key in NOT_BY_DATA:
        return passage
    first, *others = match.meanings
    words = [first, *(f"Or: {other}" for other in others)]
    return passage_of(match, words, [message.do] if message.do else [], [])
