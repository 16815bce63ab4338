"""Authentication of HTTP requests, and checks of rights.

A daemon without keys refuses requests from web pages of other sites, and under another site's host name. A
browser on the same machine can reach a daemon that listens on loopback only, and without a secret nothing
proves who sent a request. Therefore headers are checked that a browser must send and a page cannot change:
``Host`` (against DNS rebinding), ``Origin`` and ``Sec-Fetch-Site`` (against cross-site requests) and
``Content-Type`` (a page can only send JSON after a preflight, which is refused).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from synrepl.base.access import LOCAL, REMOTE, Access, Keyring
from synrepl.base.rights import Operation, missing_right, route_operation
from synrepl.http_api.route import JSON, Route
from synrepl.transports.credentials import certified_name, ip_of, is_local
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.headers import headers
from synrepl.wire.text import printable

BEARER: Final = "bearer "
JSON_TYPES: Final = frozenset({"application/json", "application/x-ndjson"})
DEFAULT_TYPES: Final = frozenset({"", "application/x-www-form-urlencoded"})


class AccessCheck:
    """Determines a request's rights from its headers, certificate and address.

    With keys configured, the request needs one of them: its secret or its certificate. Without keys, a
    certificate of the trusted CA gives all rights. Without keys and certificate, requests from other sites'
    pages and for foreign host names are refused, and peers on other machines may only read and write. `hosts`
    returns the dotted names of this daemon, in lower case; a replica learns its own after the start.
    """

    def __init__(
        self,
        keys: Keyring,
        hosts: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._keys = keys
        self._hosts = hosts

    def access(self, request: Any) -> Access:
        """Return the rights of this request. Raises `ApiError` if its key, host or origin is refused."""
        values = headers(request, "authorization") if self._keys.is_required else []
        name = certified_name(request.channel.transport)
        if name is not None and (certified := self._keys.access_by_certificate(name)) is not None:
            return certified
        if not self._keys.is_required:
            check_rebinding(request, self._hosts)
            check_origin(request)
            return LOCAL if is_local(request.getClientAddress()) else REMOTE
        key = None
        if len(values) == 1 and values[0][: len(BEARER)].lower() == BEARER:
            key = self._keys.find(values[0][len(BEARER) :].strip().encode())
        if key is None:
            why = "no key was sent" if not values else "this key is unknown or was revoked"
            if name is not None and not values:
                why = f"the certificate of {printable(name)} is not in keys_file, or was revoked"
            why = f"{why}: send the secret in one header, Authorization: Bearer SECRET"
            raise ApiError("unauthorized", why, headers={b"www-authenticate": b"Bearer"})
        return self._keys.access(key)


def check_route(access: Access, route: Route, path_variables: Mapping[str, str]) -> None:
    """Raises `ApiError` unless the peer may request this route, with these variable parts of its path.

    Handlers check the streams that a query or a body names (`Call.check_streams`).
    """
    check(access, route_operation(route), [path_variables["stream"]] if "stream" in path_variables else [])


def check(access: Access, operation: Operation, named: Iterable[str] = ()) -> None:
    """Raises `ApiError` unless the peer may do this with the streams that the request names."""
    if why := missing_right(access, operation, named):
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

    Links to this site's pages are allowed from any site: a GET that a link can cause changes nothing (a lease
    needs a header of its own), and the linking page cannot read the response.
    """
    sent = request.requestHeaders
    sites, origins = sent.getRawHeaders(b"sec-fetch-site"), sent.getRawHeaders(b"origin")
    if sites is None and origins is None:
        return
    is_link = (
        request.method in (b"GET", b"HEAD")
        and sent.getRawHeaders(b"sec-fetch-mode") == [b"navigate"]
        and sent.getRawHeaders(b"sec-fetch-dest") == [b"document"]
    )
    if any(site not in (b"same-origin", b"none") for site in sites or ()) and not is_link:
        raise ApiError("foreign_origin", "refused: a page of another site made this request")
    host = _host((sent.getRawHeaders(b"host") or [b""])[0], with_port=True)
    for origin in origins or ():
        source = _origin(origin)
        if not source or source != host:
            raise ApiError(
                "foreign_origin",
                f"a page of {printable(origin.decode('latin-1'))} made this request, for Host"
                f" {printable(host or '')}; requests of other origins are refused. If that is this daemon's"
                " own site, a proxy on the way does not pass on the Host that it got",
            )


def check_content_type(request: Any, body_type: str = JSON, *, has_body: bool = False) -> None:
    """Raises `ApiError` if a body has a content type other than `body_type`. `has_body`: there is one, which
    cannot be read here.

    No type, or the default type of curl and urllib, is accepted as JSON too, unless a header shows that a
    browser sent the request: browsers send an origin with every POST.
    """
    sent = request.requestHeaders
    values = sent.getRawHeaders(b"content-type") or [b""]
    if values == [body_type.encode()]:
        return
    if not has_body and request.content.read(1) == b"":
        return
    request.content.seek(0)
    kind = values[0].decode("latin-1").partition(";")[0].strip().lower()
    is_browser = any(map(sent.hasHeader, (b"origin", b"referer", b"sec-fetch-site")))
    if body_type not in JSON_TYPES:
        raise ApiError("content_type", f"send the body with Content-Type: {body_type}")
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
