"""Requests that came to a process that does not take them: another one writes the stream."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.homeserver.explanation.worker_storage import FROM_PACKAGES
from synrepl.homeserver.streams import WRITER_KEYS, writers_sentence
from synrepl.wire.text import printable

WRITTEN_BY: Final[Mapping[str, str]] = {
    "ReceiptRestServlet": "receipts",
    "ReadMarkerRestServlet": "receipts",
    "RoomTypingRestServlet": "typing",
    "SendToDeviceRestServlet": "to_device",
    "PushRuleRestServlet": "push_rules",
}
"""The stream of requests of clients that only its writers take, by the class that handles them."""

TO_WRITERS: Final = (
    "have the proxy send these requests to the processes of `stream_writers`: {}, or to the main process if"
    " that key is missing"
)


def _write_failed(match: Match, writers: Writers) -> Passage | None:
    name = match.pattern.literals[0].split("'")[1]
    stream = WRITTEN_BY[name]
    told = (
        f"If that is an AssertionError, or says that this is no writer: only processes that write {stream}"
        " take such requests, and this one does not."
    )
    return passage_of(match, [match.message.means, told], [TO_WRITERS.format(stream)], [])


_NOT_ON_WORKER: Final = re.compile(
    r"Cannot handle (?P<method>[A-Z]{3,7}|\{\w*\}|%s) /(?P<path>\S{1,200}) on worker", re.ASCII
)

_NOT_WRITER: Final = re.compile(
    r"_can_write_to_(\w{1,40})|_can_persist_(presence)|that is not (\w{1,40}) writer", re.ASCII
)
"""Words of a process that does not write a stream."""

_WRITTEN: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "push_rules": (
        "PUT and DELETE",
        "^/_matrix/client/(api/v1|r0|v3|unstable)/pushrules/",
        "from 1.105 on to the process in `stream_writers`: push_rules",
        "GET may stay with workers",
    ),
}
"""Paths of which a worker refuses what writes: methods, path, where else it may go, and what need not."""


def _not_on_worker(match: Match, writers: Writers) -> Passage | None:
    """Explain a path that a worker does not take with that method, or a stream that it does not write."""
    found = _NOT_ON_WORKER.search(match.text)
    if found is None:
        named = _NOT_WRITER.search(match.text)
        stream = next((one for one in named.groups() if one), "") if named else ""
        stream = "to_device" if stream == "device" else stream
        if stream not in WRITER_KEYS:
            return None
        return passage_of(
            match, [match.message.means, writers_sentence(stream)], [TO_WRITERS.format(stream)], []
        )
    method, path = found["method"], printable(found["path"].strip("/"))
    is_named = method.isalpha()
    first = (
        f"This worker does not take {method if is_named else 'requests'} of /{path}: only the main process,"
        " or the process that writes what it changes, does."
    )
    methods, where, other, rest = _WRITTEN.get(
        path, (method if is_named else "what", "that path", "", "other methods of it may stay with workers")
    )
    also = f", or {other}" if other else ""
    step = f"have the proxy send {methods} of {where} to the main process{also}. {rest}"
    return passage_of(match, [first], [step], [])


_SAYS_WRITERS: Final = frozenset(("not_writer", "wrong_role"))
"""Reasons that tell of a request that came to a process which does not write its stream."""

REQUEST_FAILED: Final = (
    "A request failed in this process with an exception, and was answered with an error 500."
)

_OF_REQUEST: Final = re.compile(r"method='(?P<method>[A-Z]{3,7})' uri='(?P<path>/[^'?\s]{1,500})", re.ASCII)

SERVED: Final = "synapse.http.server"
"""The logger of requests that failed."""

LACKS: Final = "worker_lacks"

_NEWER: Final = "or update: newer releases let workers do more of it"


def failed_request(match: Match) -> str:
    """Return method and path of a request that failed; "" for any other message."""
    found = _OF_REQUEST.search(match.text) if match.message.logger == SERVED else None
    return printable(f"{found['method']} {found['path']}") if found else ""


def to_main(passage: Passage, request: str, *, step: str = "") -> Passage:
    """Say that a request goes to the main process, in the place of the general `step` for all work."""
    sent = f"have the proxy send {request} to the main process"
    if any(sent in one for one in passage.advice):
        return passage
    # What is known of the releases says more than that newer ones let workers do more.
    is_known = any(word.startswith(FROM_PACKAGES) for word in passage.words)
    general = step.partition("; ")[0]
    kept = [one for one in passage.advice if not general or general not in one]
    advice = [sent if is_known else f"{sent}; {_NEWER}", *kept]
    return msgspec.structs.replace(passage, advice=advice)


def is_of_no_writer(reasons: Sequence[Match | str]) -> bool:
    """Whether the reasons are known, and none leaves it to the request which process writes."""
    known = [one for one in reasons if isinstance(one, Match)]
    if any(_NOT_ON_WORKER.search(one.text) for one in known):
        return True
    return bool(known) and not _SAYS_WRITERS.intersection(one.message.key for one in known)


DETAILS: Final[Mapping[str, Detail]] = {
    "client_write_failed": _write_failed,
    "not_writer": _not_on_worker,
}
"""What explains messages by their values, by the key of the message."""
