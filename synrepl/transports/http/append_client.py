"""Client that appends facts to a daemon's log."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from synrepl.errors import ReplicationError
from synrepl.http_api.routes import APPEND
from synrepl.ports.interfaces import Appended
from synrepl.streams.jsontext import dumps
from synrepl.transports.http.http_client import DaemonClient

__all__ = ["HttpAppender"]

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024


class HttpAppender(DaemonClient):
    """Appends facts to a daemon's log over HTTP."""

    async def append(
        self, stream: str, facts: list[list[Any]], writer: str | None = None, key: str | None = None
    ) -> Appended:
        """Append facts, each a list of rows; return once they are durable.

        Raises `ApiResponseError` if the daemon refuses them, `NeverSent` if the request was not sent, and
        `NotConnected` if the outcome is unknown (a retry with the same `key` is idempotent).
        """
        content: dict[str, Any] = {"facts": facts}
        if writer is not None:
            content["writer"] = writer
        if key is not None:
            content["idempotency_key"] = key
        try:
            body = dumps(content)
        except (TypeError, ValueError, RecursionError) as error:
            raise ReplicationError(f"these facts cannot be encoded as JSON: {error}") from error
        return await self.post(stream, body)

    async def post(
        self,
        stream: str,
        body: bytes,
        *,
        query: Sequence[tuple[bytes, bytes]] = (),
        timeout: float | None = None,
    ) -> Appended:
        """Append an encoded body. `timeout`, in seconds, is for this request alone."""
        request = APPEND.request(stream)
        if query:
            request = request._replace(target=f"{request.target}?{urlencode(query)}")
        return await self._http.call(
            self._base_url, request, Appended, body=body, max_bytes=MAX_RESPONSE_BYTES, timeout=timeout
        )
