"""Errors of requests, for every HTTP client of a daemon, and which of them another try can mend."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from synrepl.errors import ReplicationError
from synrepl.wire.address_list import Fault, fault_of
from synrepl.wire.error_codes import is_refusal, is_retryable

NO_REASON: Final = {
    413: "a proxy on the way takes no body of this size: raise its limit (nginx: client_max_body_size)",
    502: "a proxy on the way cannot reach the daemon",
    504: "a proxy on the way had no answer of the daemon in time",
}
"""What is most likely if an answer has a status, and is not a daemon's."""

MAX_MESSAGE: Final = 1_000


class RequestError(ReplicationError):
    """A request failed. `retryable`: the same request can succeed later.

    Unless `is_unsent`, the daemon may have done what was requested. `fault` is that of the daemon;
    `moved_to`, the addresses of the primary that it named, as ``NATIVE HTTP``. Another daemon of the same log
    may answer if `can_try_elsewhere`.
    """

    is_unsent = False
    fault = Fault.UNREACHABLE
    can_try_elsewhere = True
    moved_to = ""


class HttpError(RequestError):
    """The response is an error; `body` is its JSON object, empty if it has none."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        body: Mapping[str, Any] = MappingProxyType({}),
        *,
        url: str = "",
    ) -> None:
        super().__init__(f"{url} answered {status} {code}: {message}" if url else message)
        self.status = status
        self.code = code
        self.message = message
        self.body = body
        self.retryable = is_retryable(status, code, body)
        self.is_unsent = is_refusal(status, code)
        self.fault = fault_of(code)
        self.can_try_elsewhere = status == 503 or self.fault is not Fault.REFUSING
        self.moved_to = str(body.get("moved_to") or "")


def read_error(
    status: int,
    body: bytes,
    *,
    url: str = "",
    clean: Callable[[Any], Any] = lambda content: content,
    advice: Mapping[str, str] = MappingProxyType({}),
) -> HttpError:
    """Read an error response, of a daemon or of Synapse.

    With `url` the text of the error names it, the status and the code. `clean` is applied to the JSON;
    `advice` has messages by error code, for errors where the caller knows better what to do.
    """
    try:
        content = clean(json.loads(body))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        content = {}
    errcode, error, message = (_text(content.get(key)) for key in ("errcode", "error", "message"))
    code = errcode or error or "error"
    why = " ".join((error if errcode else message).split())[:MAX_MESSAGE]
    if not why:
        why = NO_REASON.get(status) or ("no reason given" if code != "error" else "is it a daemon?")
        why = why if url else f"HTTP status {status}: {why}"
    return HttpError(status, code, advice.get(code, why), content, url=url)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
