"""Where the Redis of a deployment is, and how to prove to it who we are.

Pure: nothing here imports a Redis library, so that settings can be read without one.
"""

import difflib
import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from synrepl.errors import ConfigError

__all__ = ["SCHEMES", "RedisAddress"]

SCHEMES: Final = ("redis://", "rediss://", "redis+sentinel://", "redis+unix://")
"""How the URL of a Redis begins where it could be something else; ``unix:`` begins an endpoint of Twisted."""

REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

FORMS: Final = "redis://host:6379, rediss://host, redis+sentinel://host,host/service or redis+unix:///path"

_LOGIN: Final = ("username", "password_file")
_TLS: Final = ("ca_file", "cert_file", "key_file", "server_name")
_QUERIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "redis": _LOGIN,
        "rediss": (*_LOGIN, *_TLS),
        "redis+sentinel": (*_LOGIN, *_TLS, "sentinel_password_file", "tls"),
        "redis+unix": _LOGIN,
        "unix": _LOGIN,
    }
)
"""What may follow the question mark, by scheme."""

_SECRETS: Final = ("password", "pass", "passwd", "auth", "secret", "sentinel_password")
"""What people write who would put a password into the URL."""


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL of Redis says. Only files of secrets are named in it, so that it may be shown and logged.

    `hosts` are the places to connect to, as (host, port): that of Redis, or those of the Sentinels if there
    is a `service`; of a UNIX socket there is a `path` instead.
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

    @classmethod
    def parse(cls, url: str) -> "RedisAddress":
        """Read a URL, as ``rediss://redis.example?password_file=/etc/synrepl/redis-password``.

        Raises ConfigError, whose text goes behind the name of the setting and shows nothing secret.
        """
        scheme, colon, rest = url.strip().partition(":")
        scheme = scheme.lower()
        if scheme not in _QUERIES or not colon or not rest.startswith("//"):
            raise ConfigError(f"is a URL such as {FORMS}")
        is_socket = scheme in ("redis+unix", "unix")
        # Nothing of what is wrong is quoted before it is certain that there is no password in it.
        if not is_socket and ("@" in rest.partition("?")[0] or "@" in rest.partition("=")[0]):
            raise ConfigError(
                "has a user or a password in it: secrets come from files, say ?password_file=/path (and"
                " &username=NAME)"
            )
        if "#" in rest or rest.split() != [rest] or not rest.isprintable():
            raise ConfigError(f"is a URL without spaces and #, such as {FORMS}")
        position, _, query = rest[2:].partition("?")
        asked = _read_query(scheme, query)
        username, password_file = asked.get("username", ""), _path(asked, "password_file")
        if username and password_file is None:
            raise ConfigError("has a username without a password: say &password_file=/path")
        if is_socket:
            path = unquote(position)
            if not path.startswith("/") or path.endswith("/"):
                raise ConfigError(f"needs the absolute path of a socket, as {scheme}:///run/redis/redis.sock")
            return cls(scheme=scheme, path=path, username=username, password_file=password_file)
        authority, _, below = position.partition("/")
        tls = scheme == "rediss" or _switch(asked, "tls")
        service = ""
        if scheme == "redis+sentinel":
            service = unquote(below)
            if not service or "/" in service or service.split() != [service]:
                raise ConfigError(
                    "needs the name of the service that the Sentinels watch, as"
                    " redis+sentinel://host1,host2/mymaster"
                )
            hosts = tuple(_host(one, SENTINEL_PORT) for one in authority.split(","))
        else:
            # Messages know nothing of databases, whatever their number.
            if below and not re.fullmatch(r"\d+", below, re.ASCII):
                raise ConfigError(f"has nothing but a number behind the host: {scheme}://host:port")
            if "," in authority:
                raise ConfigError(
                    "names one host; several Sentinels are redis+sentinel://host1,host2/service"
                )
            hosts = (_host(authority, REDIS_PORT),)
        if not tls and (useless := [name for name in _TLS if name in asked]):
            raise ConfigError(f"has {useless[0]}, which is for TLS: say &tls=true with it")
        if ("cert_file" in asked) != ("key_file" in asked):
            raise ConfigError("needs both cert_file and key_file for a client certificate")
        return cls(
            scheme=scheme,
            hosts=hosts,
            service=service,
            tls=tls,
            username=username,
            password_file=password_file,
            sentinel_password_file=_path(asked, "sentinel_password_file"),
            ca_file=_path(asked, "ca_file"),
            cert_file=_path(asked, "cert_file"),
            key_file=_path(asked, "key_file"),
            server_name=asked.get("server_name", ""),
        )

    @property
    def public(self) -> str:
        """Where it is, in few words: what goes into logs and status pages."""
        if self.path:
            return f"redis+unix://{self.path}"
        usual = SENTINEL_PORT if self.service else REDIS_PORT
        hosts = ",".join(_show(host, port, usual) for host, port in self.hosts)
        return f"{self.scheme}://{hosts}" + (f"/{self.service}" if self.service else "")

    def __str__(self) -> str:
        return self.public

    def password(self) -> str | None:
        """The password as it is in its file now; None if Redis wants none. Raises ConfigError."""
        return _read_password(self.password_file)

    def sentinel_password(self) -> str | None:
        """The password of the Sentinels as it is in its file now; None if they want none.

        Raises ConfigError.
        """
        return _read_password(self.sentinel_password_file)


def _read_query(scheme: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError("has something behind the ? that is not name=value&name=value") from None
    known = _QUERIES[scheme]
    asked: dict[str, str] = {}
    for name, value in pairs:
        if name in _SECRETS:
            instead = "sentinel_password_file" if name.startswith("sentinel") else "password_file"
            raise ConfigError(f"has a password in it: secrets come from files, say ?{instead}=/path")
        if name in _TLS and name not in known:
            raise ConfigError(f"has {name}, which is for TLS: say rediss://")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"has {name!r} behind the ?, which {scheme}:// does not know; {hint}")
        if name in asked:
            raise ConfigError(f"has {name} twice")
        if not value:
            raise ConfigError(f"has nothing for {name}")
        asked[name] = value
    return asked


def _path(asked: Mapping[str, str], name: str) -> Path | None:
    return Path(asked[name]) if name in asked else None


def _switch(asked: Mapping[str, str], name: str) -> bool:
    value = asked.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"has {name}, which is true or false")
    return value == "true"


def _host(text: str, usual_port: int) -> tuple[str, int]:
    """A host and its port. What is wrong with them is not shown: it could be part of a password."""
    found = re.fullmatch(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]*))(?::(?P<port>.*))?", text)
    if found is None or (text.count(":") > 1 and "[" not in text):
        raise ConfigError("has a host that is none; IPv6 addresses go in brackets, as redis://[::1]:6379")
    if found["six"] is not None:
        host = unquote(found["six"])
        try:
            IPv6Address(host)
        except ValueError:
            raise ConfigError("has no IPv6 address in its brackets") from None
    else:
        host = found["host"]
        if not host:
            raise ConfigError("names no host")
        if not re.fullmatch(r"[\w.-]+", host):
            raise ConfigError("has a host that is none")
    port = found["port"]
    if port is None:
        return host, usual_port
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
        raise ConfigError("has a port that is no number from 1 to 65535")
    return host, int(port)


def _show(host: str, port: int, usual_port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == usual_port else f"{shown}:{port}"


def _read_password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read the password file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        # Without the cause: that shows a piece of the file.
        raise ConfigError(f"the password file {path} is not text") from None
    if not text:
        raise ConfigError(f"the password file {path} is empty")
    if len(text.splitlines()) > 1:
        raise ConfigError(f"the password file {path} holds more than one line")
    return text
