"""Who may ask: whoever shows the secret."""

import hmac
from collections.abc import Iterable

from twisted.web.http_headers import Headers

__all__ = ["Guard"]


class Guard:
    """Knows the secret, if there is one, and those of single replicas; without any everybody may ask."""

    def __init__(self, secret: str | None, of_replicas: Iterable[str] = ()) -> None:
        secrets = [*([] if secret is None else [secret]), *of_replicas]
        self._expected = [b"Bearer " + one.encode() for one in secrets]

    def allows(self, headers: Headers) -> bool:
        """Whether these hold one of them, exactly once. Takes as long for a near miss as for a far one."""
        if not self._expected:
            return True
        shown = headers.getRawHeaders(b"authorization") or []
        # All are compared, so that the time tells nothing of which it was.
        return len(shown) == 1 and sum(hmac.compare_digest(shown[0], one) for one in self._expected) > 0
