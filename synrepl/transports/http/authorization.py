"""Authentication of HTTP requests, and checks of rights."""

from collections.abc import Callable, Collection
from typing import Any, Final

from synrepl.ports.access import LOCAL, REMOTE, Access, Keyring, Right, access_of
from synrepl.transports.credentials import certified_name, is_local
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.origin_check import check_origin, check_rebinding
from synrepl.wire.text import printable

__all__ = ["AccessCheck", "check_right", "check_streams"]

SCHEME: Final = b"bearer "


class AccessCheck:
    """Determines a request's rights from its headers, certificate and address.

    With keys configured, the request needs one of them. Without keys, requests from other sites' pages and
    for foreign host names are refused (`origin_check`), and peers on other machines may only read and write.
    `hosts` returns the names under which clients may reach this daemon, in lower case, besides addresses and
    names without dots. A replica learns its name after the start.
    """

    def __init__(self, keys: Keyring, hosts: Callable[[], Collection[str]] = tuple) -> None:
        self._keys = keys
        self._hosts = hosts

    def access(self, request: Any) -> Access:
        """Return the rights of this request. Raises `ApiError` if it is not authenticated."""
        name = certified_name(request.channel.transport)
        if name is not None and (certified := self._keys.access_by_certificate(name)) is not None:
            return certified
        if not self._keys.is_required:
            check_rebinding(request, self._hosts)
            check_origin(request)
            return LOCAL if is_local(request.getClientAddress()) else REMOTE
        values = request.requestHeaders.getRawHeaders(b"authorization") or []
        key = None
        if len(values) == 1 and values[0][: len(SCHEME)].lower() == SCHEME:
            key = self._keys.find(values[0][len(SCHEME) :].strip())
        if key is None:
            why = "no key was sent" if not values else "this key is unknown or was revoked"
            if name is not None and not values:
                why = f"the certificate of {printable(name)} is not in keys_file, or was revoked"
            raise ApiError(
                "unauthorized",
                f"{why}: send the secret in one header, Authorization: Bearer SECRET",
                headers={b"www-authenticate": b"Bearer"},
            )
        return access_of(key)


def check_right(access: Access, right: Right) -> None:
    """Raises `ApiError` if the peer lacks this right."""
    if why := access.lacks(right):
        raise ApiError("no_rights", why)


def check_streams(access: Access, *streams: str) -> None:
    """Raises `ApiError` if the peer must not see one of these streams."""
    if why := access.hides(streams):
        raise ApiError("no_rights", why)
