"""Who may ask: whoever shows the secret."""

import hmac

from twisted.web.http_headers import Headers

__all__ = ["Guard"]


class Guard:
    """Knows the secret, if there is one; without it everybody may ask."""

    def __init__(self, secret: str | None) -> None:
        self._expected = None if secret is None else b"Bearer " + secret.encode()

    def allows(self, headers: Headers) -> bool:
        """Whether these hold the secret, exactly once. Takes as long for a near miss as for a far one."""
        if self._expected is None:
            return True
        shown = headers.getRawHeaders(b"authorization") or []
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._expected)
