"""Address and credentials of a deployment's Redis.

This module imports no Redis library, so that settings can be read without one.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from synrepl.base.secret import Secret
from synrepl.errors import ConfigError, suggest
from synrepl.small_files import read_small_file

SCHEMES: Final = ("redis://", "rediss://", "redis+sentinel://", "redis+unix://")
"""Schemes of Redis URLs that could be nothing else; ``unix:`` also begins a Twisted endpoint."""

REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

FORMS: Final = "redis://host:6379, rediss://host, redis+sentinel://host,host/service or redis+unix:///path"

_LOGIN: Final = ("username", "password_file")
_TLS: Final = ("ca_file", "cert_file", "key_file", "server_name")
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "redis": _LOGIN,
        "rediss": (*_LOGIN, *_TLS),
        "redis+sentinel": (*_LOGIN, *_TLS, "sentinel_password_file", "tls"),
        "redis+unix": _LOGIN,
        "unix": _LOGIN,
    }
)
"""Query parameters, by scheme."""

_SECRETS: Final = ("password", "pass", "passwd", "auth", "secret", "sentinel_password")
"""Parameters that suggest a password in the URL."""


class RedisWords(msgspec.Struct, frozen=True, kw_only=True):
    """What messages advise, in the words of the operator's configuration; by default a URL of ours."""

    missing_login: str = "add ?password_file=/path to its URL"
    wrong_login: str = "check the password_file"
    needless_login: str = "remove password_file from its URL"
    use_tls: str = "use rediss://, or tls=true with Sentinels"
    use_no_tls: str = "redis:// is without TLS"
    give_ca: str = "name a ca_file"
    give_certificate: str = "name a cert_file and a key_file"


URL_WORDS: Final = RedisWords()


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed Redis URL. It has the paths of secret files, not their content, so it may be shown and logged.

    `given_password` is one that another program's configuration has; it counts more than `password_file`.

    `hosts` are (host, port) pairs: of Redis, or of the Sentinels if there is a `service`. A UNIX socket has a
    `path` instead. `words` are what messages call the settings.
    """

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    tls: bool = False
    username: str = ""
    password_file: Path | None = None
    sentinel_password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""
    given_password: Secret[str] | None = None
    words: RedisWords = URL_WORDS

    @classmethod
    def parse(cls, url: str) -> "RedisAddress":
        """Parse a URL, as ``rediss://redis.example?password_file=/etc/synrepl/redis-password``.

        Raises `ConfigError`, whose text continues the name of the setting and contains no secrets.
        """
        scheme, colon, rest = url.strip().partition(":")
        scheme = scheme.lower()
        if scheme not in _PARAMETERS or not colon or not rest.startswith("//"):
            raise ConfigError(f"must be a URL such as {FORMS}")
        is_socket = scheme in ("redis+unix", "unix")
        # Errors quote the URL only once it is certain to contain no password.
        if not is_socket and ("@" in rest.partition("?")[0] or "@" in rest.partition("=")[0]):
            raise ConfigError(
                "contains a user or password: put the password into a file and add ?password_file=/path (and"
                " &username=NAME)"
            )
        if "#" in rest or rest.split() != [rest] or not rest.isprintable():
            raise ConfigError(f"must be a URL without spaces and #, such as {FORMS}")
        position, _, query = rest[2:].partition("?")
        parameters = _read_query(scheme, query)
        fields: dict[str, Any] = {
            name: Path(value) if name.endswith("_file") else value
            for name, value in parameters.items()
            if name != "tls"
        }
        if "username" in fields and "password_file" not in fields:
            raise ConfigError("has a username without a password: add &password_file=/path")
        if is_socket:
            path = unquote(position)
            if not path.startswith("/") or path.endswith("/"):
                raise ConfigError(f"needs the absolute path of a socket, as {scheme}:///run/redis/redis.sock")
            return cls(scheme=scheme, path=path, **fields)
        authority, _, path_part = position.partition("/")
        wants_tls = parameters.get("tls", "false").lower()
        if wants_tls not in ("true", "false"):
            raise ConfigError("has a wrong value of tls: it must be true or false")
        tls = scheme == "rediss" or wants_tls == "true"
        service = ""
        if scheme == "redis+sentinel":
            service = unquote(path_part)
            if not service or "/" in service or service.split() != [service]:
                raise ConfigError(
                    "needs the name of the service that the Sentinels watch, as"
                    " redis+sentinel://host1,host2/mymaster"
                )
            hosts = tuple(_host(part, SENTINEL_PORT) for part in authority.split(","))
        else:
            # Redis channels do not depend on the database number.
            if path_part and not re.fullmatch(r"\d+", path_part, re.ASCII):
                raise ConfigError(f"may have only a database number after the host: {scheme}://host:port/0")
            if "," in authority:
                raise ConfigError(
                    "must name one host; for Sentinels use redis+sentinel://host1,host2/service"
                )
            hosts = (_host(authority, REDIS_PORT),)
        if not tls and (useless := [name for name in _TLS if name in parameters]):
            raise ConfigError(f"has {useless[0]}, which needs TLS: add &tls=true")
        if ("cert_file" in parameters) != ("key_file" in parameters):
            raise ConfigError("needs both cert_file and key_file for a client certificate")
        return cls(scheme=scheme, hosts=hosts, service=service, tls=tls, **fields)

    @property
    def public(self) -> str:
        """The address for logs and status pages."""
        if self.path:
            return f"redis+unix://{self.path}"
        default_port = SENTINEL_PORT if self.service else REDIS_PORT
        hosts = ",".join(_show(host, port, default_port) for host, port in self.hosts)
        return f"{self.scheme}://{hosts}" + (f"/{self.service}" if self.service else "")

    def __str__(self) -> str:
        return self.public

    def password(self) -> str | None:
        """Return the password, read from its file if there is one; None without one. Raises `ConfigError`."""
        if self.given_password is not None:
            return self.given_password.value
        return _read_password(self.password_file)

    def sentinel_password(self) -> str | None:
        """Read the Sentinels' password from its file; None without one. Raises `ConfigError`."""
        return _read_password(self.sentinel_password_file)


def _read_query(scheme: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError("has parameters after the ? that are not name=value&name=value") from None
    known = _PARAMETERS[scheme]
    parameters: dict[str, str] = {}
    for name, value in pairs:
        if name in _SECRETS:
            instead = "sentinel_password_file" if name.startswith("sentinel") else "password_file"
            raise ConfigError(f"contains a password: put it into a file and add ?{instead}=/path")
        if name in _TLS and name not in known:
            raise ConfigError(f"has {name}, which needs TLS: use rediss://")
        if name not in known:
            hint = suggest(name, known) or f"; valid are {', '.join(known)}"
            raise ConfigError(f"has the parameter {name!r}, which {scheme}:// does not have{hint}")
        if name in parameters:
            raise ConfigError(f"has {name} twice")
        if not value:
            raise ConfigError(f"has an empty {name}")
        parameters[name] = value
    return parameters


def _host(text: str, default_port: int) -> tuple[str, int]:
    """Parse host and port. Errors do not quote them: they could be part of a password."""
    match = re.fullmatch(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]*))(?::(?P<port>.*))?", text)
    if match is None or (text.count(":") > 1 and "[" not in text):
        raise ConfigError("has an invalid host; IPv6 addresses need brackets, as redis://[::1]:6379")
    if match["six"] is not None:
        host = unquote(match["six"])
        try:
            IPv6Address(host)
        except ValueError:
            raise ConfigError("has an invalid IPv6 address in brackets") from None
    else:
        host = match["host"]
        if not host:
            raise ConfigError(f"names no host; use {FORMS}")
        if not re.fullmatch(r"[\w.-]+", host):
            raise ConfigError("has an invalid host: use only letters, digits, and . - _")
    port = match["port"]
    if port is None:
        return host, default_port
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
        raise ConfigError("has a port that is not a number from 1 to 65535")
    return host, int(port)


def _show(host: str, port: int, default_port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == default_port else f"{shown}:{port}"


def _read_password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        text = read_small_file(path, "the password file").decode().strip()
    except UnicodeDecodeError:
        # Without the cause, which quotes a part of the file.
        raise ConfigError(f"the password file {path} is not UTF-8 text") from None
    if not text:
        raise ConfigError(f"the password file {path} is empty")
    if len(text.splitlines()) > 1:
        raise ConfigError(f"the password file {path} holds more than one line")
    return text
