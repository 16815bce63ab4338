"""Where to listen and to connect: Twisted's endpoint strings, and ``tls:``, which says why it fails.

::

    tls:9092:interface=0.0.0.0:certificate=/etc/synrepl/cert.pem:privateKey=/etc/synrepl/key.pem
    tls:9092:...:trustRoots=/etc/synrepl/clients-ca.pem     clients must show a certificate of this CA
    tls:log.example.org:9092:trustRoots=/etc/synrepl/ca.pem:certificate=...:privateKey=...

The words are those of Twisted's own ``tls:`` for clients; each names a file in PEM. Without ``trustRoots`` a
client trusts the CAs of the system. The server's certificate must have the name that is connected to, or that
of ``hostname=``.
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
"""Of a UNIX socket, unless it is said: other users of the machine must not get around a secret."""


def split(description: str) -> tuple[str, list[str], dict[str, str]]:
    """The kind of an endpoint string, its words by place, and those by name."""
    kind, *rest = (re.sub(r"\\(.)", r"\1", part) for part in re.split(r"(?<!\\):", description))
    named = [part.partition("=") for part in rest if "=" in part]
    return kind.lower(), [part for part in rest if "=" not in part], {name: value for name, _, value in named}


def server_endpoint(reactor: Any, description: str) -> IStreamServerEndpoint:
    """Where to listen. Raises `ConfigError` for a file of ``tls:`` that is not good.

    Twisted raises `ValueError` and others for what it does not understand.
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
        raise ConfigError("tls: needs certificate= and privateKey=, the files of the server")
    left = [quoteStringArgument(word) for word in words]
    left += [f"{name}={quoteStringArgument(value)}" for name, value in named.items()]
    plain = serverFromString(reactor, ":".join(["tcp", *left]))
    return TlsServerEndpoint(plain, ServerTls(files), reactor)


def client_endpoint(reactor: Any, description: str, files: "TlsFiles | None" = None) -> IStreamClientEndpoint:
    """Where to connect, with these `files` for ``tls:`` unless it names others. Raises as the other does."""
    kind, words, named = split(description)
    if kind != TLS:
        plain: IStreamClientEndpoint = clientFromString(reactor, description)
        return plain
    from synrepl.transports.tls import TlsFiles
    from synrepl.transports.tls_endpoints import TlsClientEndpoint

    said = _files(named)
    if (said.cert_file is None) != (said.key_file is None):
        raise ConfigError("tls: needs certificate= and privateKey= together, or neither")
    if files is not None:
        said = TlsFiles(
            ca_file=said.ca_file or files.ca_file,
            cert_file=said.cert_file or files.cert_file,
            key_file=said.key_file or files.key_file,
        )
    name = named.pop("hostname", None)
    host = named.get("host") or (words[0] if words else "")
    left = [quoteStringArgument(word) for word in words]
    left += [f"{key}={quoteStringArgument(value)}" for key, value in named.items()]
    plain = clientFromString(reactor, ":".join(["tcp", *left]))
    return TlsClientEndpoint(plain, said, name or host, reactor)


def check_server(description: str) -> None:
    """Raises `ConfigError` for what is no place to listen at."""
    _check(server_endpoint, description, "server", "tcp:9092:interface=127.0.0.1")


def check_client(description: str) -> None:
    """Raises `ConfigError` for what is no place to connect to."""
    _check(client_endpoint, description, "client", "tcp:localhost:9092")


def _check(parse: Any, description: str, side: str, example: str) -> None:
    try:
        parse(_NoReactor(), description)
    except ConfigError:
        raise
    except Exception as error:  # parsers of endpoints, plugins among them, raise what they like
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"is a Twisted {side} endpoint string such as {example}, not {description!r} ({why})"
        ) from error


def _files(named: dict[str, str]) -> "TlsFiles":
    """Takes the names of files out of the words."""
    from synrepl.transports.tls import TlsFiles

    certificate, key, roots = (named.pop(word, None) for word in ("certificate", "privateKey", "trustRoots"))
    return TlsFiles(
        cert_file=None if certificate is None else Path(certificate),
        key_file=None if key is None else Path(key),
        ca_file=None if roots is None else Path(roots),
    )


class _NoReactor:
    """Stands in for the reactor while an endpoint string is only checked."""
