"""Why a server of ours said no, as errors of their own types."""

from typing import Any, Final

import msgspec

from synrepl.errors import ReplicationError

__all__ = [
    "AheadOfLog",
    "Fork",
    "NotHereYet",
    "OtherEpoch",
    "OtherHistory",
    "ApiResponseError",
    "Trimmed",
    "as_refusal",
]


class ApiResponseError(ReplicationError):
    """The server answered with a refusal: `status`, its `code` and its `message`.

    `body` is all that it said, as far as that was a JSON object.
    """

    def __init__(
        self, *, url: str, status: int, code: str, message: str, body: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"{url} answered {status} {code}: {message}")
        self.url = url
        self.status = status
        self.code = code
        self.message = message
        self.body = body or {}
        told = self.body.get("retryable")
        self.retryable = told if isinstance(told, bool) else status in {429, 502, 503, 504}


class _Elsewhere(ApiResponseError):
    """What we hold is no part of the server's log, which ends at `serial` of `epoch`."""

    @property
    def serial(self) -> int:
        """Where the server's log ends."""
        return _integer(self.body.get("serial"))

    @property
    def epoch(self) -> int:
        """The epoch of the server's log."""
        return _integer(self.body.get("epoch"))


class AheadOfLog(_Elsewhere):
    """We know facts that the server's log, which ends at `serial` of `epoch`, does not have."""


class Fork(_Elsewhere):
    """We hold another fact than the server does where we stand, or one of an epoch that had ended there."""


class OtherEpoch(_Elsewhere):
    """We know of a later epoch than the server does: somebody else is the primary now."""


class OtherHistory(_Elsewhere):
    """The server's log is no copy of what we hold, and never was."""


class Trimmed(_Elsewhere):
    """The facts that we lack are no longer in the server's log, of which all beyond `begin` is."""

    @property
    def trimmed_upto(self) -> int:
        """Up to where the server's log was trimmed."""
        return _integer(self.body.get("trimmed_upto"))


class NotHereYet(ApiResponseError):
    """The server did not come as far as was wanted in time. What was posted is committed at its upstream."""

    @property
    def serial(self) -> int:
        """What was wanted."""
        return _integer(self.body.get("serial"))


_KINDS: Final[dict[tuple[int, str], type[ApiResponseError]]] = {
    (409, "ahead_of_log"): AheadOfLog,
    (409, "fork"): Fork,
    (409, "other_epoch"): OtherEpoch,
    (409, "other_history"): OtherHistory,
    (410, "trimmed"): Trimmed,
    (504, "not_here_yet"): NotHereYet,
}


def as_refusal(status: int, body: bytes, url: str) -> ApiResponseError:
    """What an answer that is not 200 says, in our form or in Synapse's."""
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = {}
    errcode, error, message = (_text(told.get(key)) for key in ("errcode", "error", "message"))
    code = errcode or error or "error"
    why = " ".join((error if errcode else message).split())[:1000] or "no reason given"
    kind = _KINDS.get((status, code), ApiResponseError)
    return kind(url=url, status=status, code=code, message=why, body=told)


def _text(told: Any) -> str:
    return told if isinstance(told, str) else ""


def _integer(told: Any) -> int:
    return told if isinstance(told, int) else 0
