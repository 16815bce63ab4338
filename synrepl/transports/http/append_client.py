"""Adding facts to a daemon's log over HTTP."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from synrepl.errors import ReplicationError
from synrepl.ports.interfaces import Appended
from synrepl.streams.jsontext import dumps
from synrepl.transports.http.http_client import DaemonClient, decoded, public

__all__ = ["HttpAppender"]

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class HttpAppender(DaemonClient):
    """Adds facts to a daemon's log over HTTP."""

    async def append(
        self, stream: str, facts: list[list[Any]], writer: str | None = None, key: str | None = None
    ) -> Appended:
        """Add facts, each a list of rows; done when they are durable.

        Raises `RequestRefused` with the server's own words, `NotConnected` when it is unknown what became of
        them (harmless to repeat with the same `key`), `NeverSent` when they were not even sent.
        """
        asked: dict[str, Any] = {"facts": facts}
        if writer is not None:
            asked["writer"] = writer
        if key is not None:
            asked["idempotency_key"] = key
        try:
            body = dumps(asked)
        except (TypeError, ValueError, RecursionError) as error:
            raise ReplicationError(f"these facts cannot be written as JSON: {error}") from error
        return await self.post(stream, body)

    async def post(
        self,
        stream: str,
        body: bytes,
        *,
        query: Sequence[tuple[bytes, bytes]] = (),
        timeout: float | None = None,
    ) -> Appended:
        """`append`, of a body as it is sent. `timeout` is for this request alone, in seconds."""
        url = f"{self._base_url}/v1/streams/{quote(stream, safe='')}/facts"
        if query:
            url = f"{url}?{urlencode(query)}"
        answer = await self._http.whole("POST", url, body, MAX_ANSWER_BYTES, timeout=timeout)
        return decoded(Appended, answer, public(url))
