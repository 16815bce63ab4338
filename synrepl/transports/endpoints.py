"""Endpoints to listen on and to connect to: Twisted's endpoint strings, and types of our own."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from synrepl.errors import ConfigError
from synrepl.key_rules import is_loopback_host, is_loopback_ip

# Twisted's endpoints are imported on use: they take most of the start of a command that checks settings.
if TYPE_CHECKING:
    from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

    from synrepl.transports.tls import TlsFiles

OWN_TYPES: Final[Mapping[str, str]] = MappingProxyType({"tls": "synrepl.transports.tls_endpoints"})
"""Our own endpoint types, each with the module of its `server_endpoint` and `client_endpoint`.

These functions get the reactor, and the positional and named arguments. A module is imported on first use:
OpenSSL is large.
"""

REPLICA_TYPES: Final = frozenset({"tcp", "ssl", "unix", *OWN_TYPES})
"""The endpoint types that replicas may connect to at the request of a peer."""

LOCAL_TYPES: Final = frozenset({"unix"})
"""The endpoint types that only this machine can connect to."""

UNIX_MODE: Final = "600"
"""Default mode of a UNIX socket: other users of the machine must not bypass a secret."""

BACKLOG: Final = "4096"
"""The most connections that the system holds for a listener until they are accepted, by default; it may allow
fewer.

Beyond it a client's first packet is dropped, and the client tries again a second later. Twisted's 50 are soon
reached, as clients connect faster than a daemon accepts: followers that come back together would be served 60
a second.
"""


def split(description: str) -> tuple[str, list[str], dict[str, str]]:
    """Split an endpoint string into its type, its positional and its named arguments."""
    kind, *rest = (re.sub(r"\\(.)", r"\1", part) for part in re.split(r"(?<!\\):", description))
    named = [part.partition("=") for part in rest if "=" in part]
    return kind.lower(), [part for part in rest if "=" not in part], {name: value for name, _, value in named}


def join(kind: str, words: Sequence[str], named: Mapping[str, str]) -> str:
    """Join what `split` returns to an endpoint string."""
    from twisted.internet.endpoints import quoteStringArgument

    arguments = [quoteStringArgument(word) for word in words]
    arguments += [f"{name}={quoteStringArgument(value)}" for name, value in named.items()]
    return ":".join([kind, *arguments])


def host_of(description: str) -> str:
    """Return the host of a client endpoint; empty for a type that has none."""
    kind, words, named = split(description)
    return named.get("host", words[0] if words else "") if kind in ("tcp", "tls") else ""


def is_private(description: str, peer: Any = None) -> bool:
    """Whether nobody else can read a connection to this client endpoint (`synrepl.key_rules`).

    `peer` is the address that was found there; None before the connection. Twisted's own ``ssl:`` does not
    verify whom it speaks to.
    """
    kind, _, _ = split(description)
    if kind == "tls" or kind in LOCAL_TYPES:
        return True
    if kind != "tcp" or not is_loopback_host(host_of(description)):
        return False
    return peer is None or is_loopback_ip(str(getattr(peer, "host", "")))


def server_endpoint(reactor: Any, description: str) -> "IStreamServerEndpoint":
    """Make the endpoint to listen on. Raises `ConfigError` for a missing or unusable file of ``tls:``.

    For invalid strings Twisted raises `ValueError` and others.
    """
    kind, _, named = split(description)
    if kind in ("tcp", "tls", "unix") and "backlog" not in named:
        description = f"{description}:backlog={BACKLOG}"
    if kind == "unix" and "mode" not in named:
        description = f"{description}:mode={UNIX_MODE}"
    endpoint: IStreamServerEndpoint = _endpoint("server", reactor, description)
    return endpoint


def client_endpoint(
    reactor: Any, description: str, files: "TlsFiles | None" = None
) -> "IStreamClientEndpoint":
    """Parse `description` into a client endpoint.

    A ``tls:`` endpoint uses `files` unless `description` names its own. Raises `ConfigError` if it names a
    certificate without a key or vice versa; Twisted raises others, as for `server_endpoint`.
    """
    endpoint: IStreamClientEndpoint = _endpoint("client", reactor, description, files)
    return endpoint


def _endpoint(side: str, reactor: Any, description: str, *files: "TlsFiles | None") -> Any:
    kind, words, named = split(description)
    if kind in OWN_TYPES:
        return getattr(import_module(OWN_TYPES[kind]), f"{side}_endpoint")(reactor, words, named, *files)
    return getattr(import_module("twisted.internet.endpoints"), f"{side}FromString")(reactor, description)


def check_server(description: str) -> None:
    """Raises `ConfigError` unless this is an endpoint to listen on."""
    _check(server_endpoint, description, "server", "tcp:9092:interface=127.0.0.1")


def check_client(description: str) -> None:
    """Raises `ConfigError` unless this is an endpoint to connect to."""
    _check(client_endpoint, description, "client", "tcp:localhost:9092")


def _check(parse: Any, description: str, side: str, example: str) -> None:
    try:
        parse(_NoReactor(), description)
    except ConfigError:
        raise
    except Exception as error:  # endpoint parsers and plugins raise various errors
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"must be a Twisted {side} endpoint string such as {example}, not {description!r} ({why})"
        ) from error


class _NoReactor:
    """Replaces the reactor while an endpoint string is only checked."""
