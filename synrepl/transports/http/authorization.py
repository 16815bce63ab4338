"""Authentication of HTTP requests, and checks of rights.

A daemon without keys refuses requests from web pages of other sites, and under another site's host name. A
browser on the same machine can reach a daemon that listens on loopback only, and without a secret nothing
proves who sent a request. Therefore headers are checked that a browser must send and a page cannot change:
``Host`` (against DNS rebinding), ``Origin`` and ``Sec-Fetch-Site`` (against cross-site requests) and
``Content-Type`` (a page can only send JSON after a preflight, which is refused).
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from synrepl.ports.access import LOCAL, REMOTE, Access, Keyring, Right, access_of
from synrepl.transports.credentials import certified_name, ip_of, is_local
from synrepl.transports.http.api_error import ApiError
from synrepl.wire.text import printable

SCHEME: Final = b"bearer "
JSON_TYPES: Final = frozenset({"application/json", "application/x-ndjson"})
DEFAULT_TYPES: Final = frozenset({"", "application/x-www-form-urlencoded"})


class AccessCheck:
    """Determines a request's rights from its headers, certificate and address.

    With keys configured, the request needs one of them: its secret or its certificate. Without keys, a
    certificate of the trusted CA gives all rights. Without keys and certificate, requests from other sites'
    pages and for foreign host names are refused, and peers on other machines may only read and write. `hosts`
    returns the dotted names of this daemon, in lower case; a replica learns its own after the start.
    """

    def __init__(self, keys: Keyring, hosts: Callable[[], Collection[str]] = tuple) -> None:
        self._keys = keys
        self._hosts = hosts

    def access(self, request: Any) -> Access:
        """Return the rights of this request. Raises `ApiError` if its key, host or origin is refused."""
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


def check_rebinding(request: Any, hosts: Callable[[], Collection[str]]) -> None:
    """Raises `ApiError` unless ``Host`` is an address, a name without dots, ``*.localhost`` or in `hosts`.

    A page of evil.example can make that name resolve to 127.0.0.1 and then read every response, but the
    browser still sends ``Host: evil.example``. That is impossible with an address, or with a name that only
    the local network resolves (``localhost``, a container's name, the instance names that Synapse workers
    send).
    """
    values = request.requestHeaders.getRawHeaders(b"host")
    if not values:
        return  # HTTP/1.0; browsers always send it
    host = _host(values[0])
    if len(values) == 1 and host is not None and ("." not in host or ip_of(host) or host in hosts()):
        return
    if host is not None and host.endswith(".localhost"):
        return
    raise ApiError(
        "foreign_host",
        f"Host {printable(', '.join(value.decode('latin-1') for value in values))} is not a name of this"
        " daemon: use an address, localhost, or add the name to allowed_hosts",
    )


def check_origin(request: Any) -> None:
    """Raises `ApiError` if a page of another origin caused this request.

    Links to this site's pages are allowed from any site: GET changes nothing, and the linking page cannot
    read the response.
    """
    headers = request.requestHeaders
    sites, origins = headers.getRawHeaders(b"sec-fetch-site"), headers.getRawHeaders(b"origin")
    if sites is None and origins is None:
        return
    is_link = (
        request.method in (b"GET", b"HEAD")
        and headers.getRawHeaders(b"sec-fetch-mode") == [b"navigate"]
        and headers.getRawHeaders(b"sec-fetch-dest") == [b"document"]
    )
    if any(site not in (b"same-origin", b"none") for site in sites or ()) and not is_link:
        raise ApiError("foreign_origin", "refused: a page of another site made this request")
    host = _host((headers.getRawHeaders(b"host") or [b""])[0], with_port=True)
    for origin in origins or ():
        source = _origin(origin)
        if not source or source != host:
            raise ApiError(
                "foreign_origin",
                f"a page of {printable(origin.decode('latin-1'))} made this request; requests of other"
                " origins are refused",
            )


def check_content_type(request: Any) -> None:
    """Raises `ApiError` if a body has a content type other than JSON.

    No type, or the default type of curl and urllib, is accepted too, unless a header shows that a browser
    sent the request: browsers send an origin with every POST.
    """
    headers = request.requestHeaders
    values = headers.getRawHeaders(b"content-type") or [b""]
    if values == [b"application/json"]:
        return
    if request.content.read(1) == b"":
        return
    request.content.seek(0)
    kind = values[0].decode("latin-1").partition(";")[0].strip().lower()
    is_browser = any(map(headers.hasHeader, (b"origin", b"referer", b"sec-fetch-site")))
    if len(values) != 1 or kind not in (JSON_TYPES if is_browser else JSON_TYPES | DEFAULT_TYPES):
        raise ApiError(
            "content_type",
            f"the body must be JSON: send Content-Type: application/json, not {printable(kind) or 'nothing'}",
        )


def _origin(value: bytes) -> str:
    try:
        return urlsplit(value.decode("latin-1")).netloc.lower()
    except ValueError:
        return ""


@lru_cache(maxsize=256)
def _host(value: bytes, *, with_port: bool = False) -> str | None:
    try:
        parts = urlsplit(f"//{value.decode('latin-1').strip()}")
        name = parts.hostname
        _ = parts.port
    except ValueError:
        return None
    if name is None or parts.path or parts.username is not None:
        return None
    return parts.netloc.lower() if with_port else name.rstrip(".")
