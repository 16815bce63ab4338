"""Who asks over HTTP, and what they may do."""

from collections.abc import Collection
from typing import Any, Final

from synrepl.ports.access import LOCAL, REMOTE, Access, Keyring, Right, access_of
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.origin_check import check_origin, check_rebinding
from synrepl.transports.peers import certified_name, is_local
from synrepl.wire.text import printable

__all__ = ["AccessCheck", "check_right", "check_streams"]

SCHEME: Final = b"bearer "


class AccessCheck:
    """Decides what the sender of a request may do, from its headers and its address.

    With keys configured it must show one of them. Without any, pages of other sites and foreign names of this
    host are refused (`origins`), and peers on other machines may only read and write. `hosts` are the names,
    beside addresses and names without dots, under which clients may reach this daemon.
    """

    def __init__(self, keys: Keyring, hosts: Collection[str] = ()) -> None:
        self._keys = keys
        self._hosts = frozenset(host.lower() for host in hosts)

    def access(self, request: Any) -> Access:
        """What this request may do. Raises `ApiError`."""
        name = certified_name(request.channel.transport)
        if name is not None and (certified := self._keys.certified(name)) is not None:
            return certified
        if not self._keys.are_wanted:
            check_rebinding(request, self._hosts)
            check_origin(request)
            return LOCAL if is_local(request.getClientAddress()) else REMOTE
        shown = request.requestHeaders.getRawHeaders(b"authorization") or []
        key = None
        if len(shown) == 1 and shown[0][: len(SCHEME)].lower() == SCHEME:
            key = self._keys.shown(shown[0][len(SCHEME) :].strip())
        if key is None:
            why = "no key was shown" if not shown else "this key is unknown here, or was revoked"
            if name is not None and not shown:
                why = f"the certificate of {printable(name)} is not in keys_file, or was revoked"
            raise ApiError(
                401,
                "unauthorized",
                f"{why}: send the secret, once, as Authorization: Bearer",
                www_authenticate=b"Bearer",
            )
        return access_of(key)


def check_right(access: Access, right: Right) -> None:
    """Raises `ApiError` if the peer lacks this right."""
    if why := access.lacks(right):
        raise ApiError(403, "no_rights", why)


def check_streams(access: Access, *streams: str) -> None:
    """Raises `ApiError` if the peer may not see one of these streams."""
    if why := access.hides(streams):
        raise ApiError(403, "no_rights", why)
