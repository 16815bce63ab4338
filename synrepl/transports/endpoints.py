"""Endpoints to listen on and to connect to: Twisted's endpoint strings, and ``tls:`` with readable errors.

::

    tls:9092:interface=0.0.0.0:certificate=/etc/synrepl/cert.pem:privateKey=/etc/synrepl/key.pem
    tls:9092:...:trustRoots=/etc/synrepl/clients-ca.pem     clients must send a certificate of this CA
    tls:log.example.org:9092:trustRoots=/etc/synrepl/ca.pem:certificate=...:privateKey=...

The arguments are those of Twisted's own ``tls:`` for clients; each names a PEM file. Without ``trustRoots`` a
client trusts the CAs of the system. The server's certificate must be for the host of the string, or for
``hostname=``.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.endpoints import clientFromString, quoteStringArgument, serverFromString
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from synrepl.errors import ConfigError

if TYPE_CHECKING:
    from synrepl.transports.tls import TlsFiles

__all__ = ["check_client", "check_server", "client_endpoint", "server_endpoint", "split"]

TLS: Final = "tls"
UNIX_MODE: Final = "600"
"""Default mode of a UNIX socket: other users of the machine must not bypass a secret."""


def split(description: str) -> tuple[str, list[str], dict[str, str]]:
    """Split an endpoint string into its type, its positional and its named arguments."""
    kind, *rest = (re.sub(r"\\(.)", r"\1", part) for part in re.split(r"(?<!\\):", description))
    named = [part.partition("=") for part in rest if "=" in part]
    return kind.lower(), [part for part in rest if "=" not in part], {name: value for name, _, value in named}


def server_endpoint(reactor: Any, description: str) -> IStreamServerEndpoint:
    """Make the endpoint to listen on. Raises `ConfigError` for an unusable file of ``tls:``.

    Twisted raises `ValueError` and others for invalid strings.
    """
    kind, words, named = split(description)
    if kind == "unix" and "mode" not in named:
        description = f"{description}:mode={UNIX_MODE}"
    if kind != TLS:
        plain: IStreamServerEndpoint = serverFromString(reactor, description)
        return plain
    from synrepl.transports.tls import ServerTls
    from synrepl.transports.tls_endpoints import TlsServerEndpoint

    files = _files(named)
    if files.cert_file is None or files.key_file is None:
        raise ConfigError("tls: needs certificate= and privateKey=, the server's files")
    arguments = [quoteStringArgument(word) for word in words]
    arguments += [f"{name}={quoteStringArgument(value)}" for name, value in named.items()]
    plain = serverFromString(reactor, ":".join(["tcp", *arguments]))
    return TlsServerEndpoint(plain, ServerTls(files), reactor)


def client_endpoint(reactor: Any, description: str, files: "TlsFiles | None" = None) -> IStreamClientEndpoint:
    """Parse `description` into a client endpoint.

    A ``tls:`` endpoint uses `files` unless `description` names its own. Raises like `server_endpoint`.
    """
    kind, words, named = split(description)
    if kind != TLS:
        plain: IStreamClientEndpoint = clientFromString(reactor, description)
        return plain
    from synrepl.transports.tls import TlsFiles
    from synrepl.transports.tls_endpoints import TlsClientEndpoint

    tls_files = _files(named)
    if (tls_files.cert_file is None) != (tls_files.key_file is None):
        raise ConfigError("tls: needs certificate= and privateKey= together, or neither")
    if files is not None:
        tls_files = TlsFiles(
            ca_file=tls_files.ca_file or files.ca_file,
            cert_file=tls_files.cert_file or files.cert_file,
            key_file=tls_files.key_file or files.key_file,
        )
    name = named.pop("hostname", None)
    host = named.get("host") or (words[0] if words else "")
    arguments = [quoteStringArgument(word) for word in words]
    arguments += [f"{key}={quoteStringArgument(value)}" for key, value in named.items()]
    plain = clientFromString(reactor, ":".join(["tcp", *arguments]))
    return TlsClientEndpoint(plain, tls_files, name or host, reactor)


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


def _files(named: dict[str, str]) -> "TlsFiles":
    """Remove the file arguments from `named`, and return them."""
    from synrepl.transports.tls import TlsFiles

    certificate, key, roots = (named.pop(word, None) for word in ("certificate", "privateKey", "trustRoots"))
    return TlsFiles(
        cert_file=None if certificate is None else Path(certificate),
        key_file=None if key is None else Path(key),
        ca_file=None if roots is None else Path(roots),
    )


class _NoReactor:
    """Replaces the reactor while an endpoint string is only checked."""
