"""The answers of application services to transactions, and what to do about each."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers

_NO_ANSWER: Final = (
    "A proxy before it got no answer of the service, or none in time.",
    (
        "see whether the service runs, its load, and its log at that time; events wait and come in order"
        " afterwards"
    ),
)

_TOO_LATE: Final = (
    (
        "It gave no answer in the time that Synapse waits (60 s): the same transaction is sent again, so"
        " that what the service did already it does once more, and all later events wait."
    ),
    (
        "let the service answer at once, and do its work afterwards; see its log at that time for what"
        " it waits for. By the number in the path it must know a transaction that it has had"
    ),
)
"""What it means that an application service did not answer, and what to do."""

OLD_PATH: Final = (
    (
        "Synapse asked the old path, /transactions/, which newer services (as mautrix') do not have: releases"
        " before 1.81 know no other. From 1.81 on /_matrix/app/v1/transactions/ is asked first, and the"
        " old one only where that is not known."
    ),
    (
        "update Synapse to 1.81 or later. If it is: the service takes neither path, so see whether url in the"
        " registration is its own"
    ),
)
"""What a 404 at the old path tells, and what to do."""

_NOT_ACCEPTED: Final = (
    "It does not accept who asks.",
    (
        "compare hs_token in its file and in Synapse's. If they are the same: services that look for it in"
        " the URL alone need use_appservice_legacy_authorization: true, since 1.90"
    ),
)

AS_ANSWERS: Final[Mapping[int, tuple[str, str]]] = {
    HTTPStatus.BAD_GATEWAY: _NO_ANSWER,
    HTTPStatus.SERVICE_UNAVAILABLE: _NO_ANSWER,
    HTTPStatus.GATEWAY_TIMEOUT: _NO_ANSWER,
    HTTPStatus.UNAUTHORIZED: _NOT_ACCEPTED,
    HTTPStatus.FORBIDDEN: _NOT_ACCEPTED,
    HTTPStatus.NOT_FOUND: (
        "Who answers there does not know the path: another server, perhaps Synapse itself, or an old one.",
        "see whether url in the registration is that of the service and not of Synapse",
    ),
}
"""What answers of an application service tell, and what to do."""


def asks_old_path(text: str) -> bool:
    """Whether an application service was asked at the path that only old ones have."""
    return "/transactions/" in text and "/_matrix/app/" not in text


def _as_answer(match: Match, writers: Writers) -> Passage | None:
    """Explain the answer of an application service by its status, or that it is no JSON."""
    if "Expecting value" in match.text:
        told = "It answered with what is no JSON, so that Synapse does not take the transaction for received."
        step = (
            "see who answers at its url: the service itself must answer {} (an older version may answer with"
            " nothing: update it), and no page of a proxy or of another program"
        )
        return passage_of(match, [match.message.means, told], [step], [])
    if "CancelledError" in match.text or "TimeoutError" in match.text:
        return passage_of(match, [match.message.means, _TOO_LATE[0]], [_TOO_LATE[1]], [])
    code = next((int(value) for value in match.values if value.isdigit()), 0)
    if code not in AS_ANSWERS:
        return None
    told, step = AS_ANSWERS[HTTPStatus(code)]
    if code == HTTPStatus.NOT_FOUND and asks_old_path(match.text):
        told, step = OLD_PATH
    return passage_of(match, [match.message.means, told], [step], [])


DETAILS: Final[Mapping[str, Detail]] = {
    "as_push_failed": _as_answer,
}
"""What explains messages by their values, by the key of the message."""
