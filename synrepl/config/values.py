"""How values are read: each takes the text of a flag as well as the value in a file.

What makes no sense is a `ConfigError` whose text goes on after the name of the setting.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from synrepl.config.suggestion import suggestion
from synrepl.errors import ConfigError
from synrepl.transports.endpoints import check_client, check_server
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.write_policy import StreamWrite
    from synrepl.storage.tables.layout import TableStream
    from synrepl.transports.redis.address import RedisAddress

__all__ = [
    "MIB",
    "client_endpoints",
    "database",
    "dialect",
    "endpoint",
    "endpoints",
    "fetching",
    "file_name",
    "instance_map",
    "maybe_database",
    "maybe_positive",
    "maybe_text",
    "maybe_word",
    "names",
    "positive",
    "redis",
    "redis_writes",
    "size",
    "switch",
    "tables",
    "text",
    "upstream",
    "word",
]

MIB: Final = 1024 * 1024
UNITS: Final = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}


def text(value: Any) -> str:
    """Some text, not empty."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
        raise ConfigError(f"is some text, not {value!r}")
    return str(value)


def word(value: Any) -> str:
    """A name that goes over the wire."""
    name = text(value)
    if name.split() != [name] or not name.isprintable():
        raise ConfigError(f"is one word without spaces, not {value!r}")
    return name


def positive(value: Any) -> float:
    """A number of seconds."""
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"is a number of seconds above 0, not {value!r}")
    return number


def size(value: Any) -> int:
    """A number of bytes, as 1048576 or 1MiB."""
    found = re.fullmatch(r"(\d{1,18}) ?(B|KiB|MiB|GiB|TiB)?", str(value).strip(), re.ASCII)
    number = int(found[1]) * UNITS[found[2] or "B"] if found else 0
    if isinstance(value, bool) or number <= 0:
        raise ConfigError(f"is a number of bytes above 0, such as 1048576 or 1MiB, not {value!r}")
    return number


def switch(value: Any) -> bool:
    """On or off."""
    if not isinstance(value, bool):
        raise ConfigError(f"is true or false, not {value!r}")
    return value


def endpoint(value: Any) -> str:
    """A Twisted server endpoint string that Twisted understands."""
    description = text(value)
    if description.isdigit():
        raise ConfigError(
            f"is an endpoint string; for port {description} say tcp:{description}:interface=127.0.0.1"
        )
    check_server(description)
    return description


def endpoints(value: Any) -> tuple[str, ...]:
    """One endpoint string or several."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)) or not several:
        raise ConfigError(f"is an endpoint string, or a list of them, not {value!r}")
    return tuple(map(endpoint, several))


def client_endpoints(value: Any) -> tuple[str, ...]:
    """Client endpoint strings, one or several or none."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)):
        raise ConfigError(f"is a client endpoint string, or a list of them, not {value!r}")
    for description in map(text, several):
        check_client(description)
    return tuple(several)


def database(value: Any) -> str:
    """``sqlite:`` and a path, or a PostgreSQL URL without a password."""
    url = text(value)
    kind, _, rest = url.partition(":")
    if kind in ("postgresql", "postgres"):
        return _postgres(url, rest)
    if url.startswith("sqlite://"):
        path = "/" + url.removeprefix("sqlite:").lstrip("/")
        raise ConfigError(f"is sqlite:PATH without //; perhaps sqlite:{path}, or sqlite:{path[1:]}")
    if kind != "sqlite":
        raise ConfigError(
            "is sqlite:PATH, as sqlite:synrepl.db or sqlite:/var/lib/synrepl.db, or postgresql://..., not"
            f" {kind + '://...' if rest.startswith('//') else repr(url)}"
        )
    if url == "sqlite:" or url.endswith("/"):
        raise ConfigError(f"needs the path of a file after sqlite:, not {url!r}")
    return url


def _postgres(url: str, rest: str) -> str:
    """Nothing that is wrong with it is shown whole: there may be a password in it."""
    if not rest.startswith("//"):
        raise ConfigError("is postgresql://user@host/database, with // after the colon")
    try:
        parts = urlsplit(url)
        # A password may hold a slash that should have been written as %2F.
        has_password = ":" in rest.partition("?")[0].rpartition("@")[0]
        asked = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError("is no URL such as postgresql://user@host/database") from None
    if has_password or any(name in ("password", "sslpassword") for name, _ in asked):
        raise ConfigError(
            "has a password in it, which other users of the machine could see: put it into a pgpass file,"
            " and name that with ?passfile=/path or in PGPASSFILE"
        )
    if parts.fragment or url.split() != [url]:
        raise ConfigError("is a URL without spaces and #, as postgresql://user@host/database")
    return url


def dialect(value: Any) -> Dialect | None:
    """A dialect, or None for auto."""
    if value == "auto":
        return None
    try:
        return Dialect.parse(text(value))
    except ConfigError as error:
        hint = suggestion(str(value), ("auto", "legacy", "middle", "current", "native"))
        raise ConfigError(
            f"is auto, legacy, middle, current, native or a release such as 1.83{hint}: {error}"
        ) from error


def upstream(value: Any) -> str | None:
    """The HTTP address of another daemon, or a client endpoint string that leads to its listener."""
    if value is None:
        return None
    where = text(value)
    if where.startswith(("http://", "https://")):
        try:
            parts = urlsplit(where)
            is_url = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            raise ConfigError(f"is no URL such as http://hs.example:9093 or http://[::1]:9093: {where!r}")
        if parts.username is not None:
            raise ConfigError("has a user in it: the secret is said with --secret-file")
        return where.rstrip("/")
    client_endpoints(where)
    return where


def names(value: Any) -> tuple[str, ...] | None:
    """Names with commas between, or a list of them."""
    if value in (None, "", (), []):
        return None
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"is a list of names with commas between, not {value!r}")
    return tuple(sorted({word(one) for one in given}))


def fetching(value: Any) -> str:
    """When a replica fetches files."""
    if value not in ("eager", "lazy"):
        raise ConfigError(f"is eager or lazy, not {value!r}")
    return str(value)


def maybe_word(value: Any) -> str | None:
    """A name, or none."""
    return None if value is None else word(value)


def maybe_text(value: Any) -> str | None:
    """A text, or none."""
    return None if value is None else text(value)


def file_name(value: Any) -> Path | None:
    """The path of a file."""
    return None if value is None else Path(text(value))


def maybe_positive(value: Any) -> float | None:
    """A number of seconds, or none."""
    return None if value is None else positive(value)


def instance_map(value: Any) -> Mapping[str, str]:
    """Instance names to HTTP addresses: URLs, or tables as in the configuration of Synapse."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"is a table of instance names and HTTP addresses, not {value!r}")
    return MappingProxyType({word(name): _instance_url(name, where) for name, where in value.items()})


def _instance_url(name: str, where: Any) -> str:
    """Where an instance answers HTTP."""
    if isinstance(where, Mapping):
        return _synapse_url(name, where)
    if not isinstance(where, str) or not re.match(r"https?://[^/\s]", where):
        raise ConfigError(
            f"has {where!r} for {name}, which is no HTTP address such as http://localhost:9101,"
            " and no table of host, port and tls"
        )
    return where


def _synapse_url(name: str, where: Mapping[Any, Any]) -> str:
    """The URL of an instance of which Synapse knows `host`, `port` and `tls`."""
    if "path" in where:
        raise ConfigError(
            f"has the Unix socket {where['path']!r} for {name}: rows are fetched over HTTP over TCP; give"
            f" {name} a TCP replication listener, and say its host and port"
        )
    unknown = sorted(str(key) for key in where if key not in ("host", "port", "tls"))
    host, port, tls = where.get("host"), where.get("port"), where.get("tls", False)
    is_port = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536
    is_host = isinstance(host, str) and re.fullmatch(r"[^/\s@?#\[\]]+", host)
    if unknown or not (is_host and is_port and isinstance(tls, bool)):
        raise ConfigError(
            f"has {dict(where)!r} for {name}, which is no table of host, port (1 to 65535) and tls (true or"
            " false; false unless said), such as {host: localhost, port: 9101}"
        )
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in str(host) else host}:{port}"


def tables(value: Any) -> "tuple[TableStream, ...]":
    """Streams that are read from tables; `Settings.build` puts the instance's name in."""
    if value in ((), [], None):
        return ()
    from synrepl.storage.tables.layout import table_streams

    return tuple(table_streams(value, default_writer="master"))


def redis(value: Any) -> "RedisAddress | None":
    """Where a Redis is."""
    if value is None:
        return None
    from synrepl.transports.redis.address import RedisAddress

    return RedisAddress.parse(text(value))


def redis_writes(value: Any) -> "tuple[StreamWrite, ...]":
    """Streams that are told on Redis."""
    if value in ((), [], None, ""):
        return ()
    from synrepl.replication.write_policy import read_writes

    return read_writes(value)


def maybe_database(value: Any) -> str | None:
    """A database, or none."""
    return None if value is None else database(value)
