"""Parsers of setting values. Each accepts the text of a flag and the value of a file.

An invalid value raises a `ConfigError` whose text follows the name of the setting.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from synrepl.errors import ConfigError, suggest
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
    "fetch_rule",
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
    """Parse a text that is not empty."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
        raise ConfigError(f"must be a text that is not empty, not {value!r}")
    return str(value)


def word(value: Any) -> str:
    """Parse a name that goes over the wire."""
    name = text(value)
    if name.split() != [name] or not name.isprintable():
        raise ConfigError(f"must be one word without spaces, not {value!r}")
    return name


def positive(value: Any) -> float:
    """Parse a number of seconds."""
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"must be a number of seconds above 0, not {value!r}")
    return number


def size(value: Any) -> int:
    """Parse a number of bytes, such as 1048576 or 1MiB."""
    found = re.fullmatch(r"(\d{1,18}) ?(B|KiB|MiB|GiB|TiB)?", str(value).strip(), re.ASCII)
    number = int(found[1]) * UNITS[found[2] or "B"] if found else 0
    if isinstance(value, bool) or number <= 0:
        raise ConfigError(f"must be a number of bytes above 0, such as 1048576 or 1MiB, not {value!r}")
    return number


def switch(value: Any) -> bool:
    """Parse a boolean."""
    if not isinstance(value, bool):
        raise ConfigError(f"must be true or false, not {value!r}")
    return value


def endpoint(value: Any) -> str:
    """Parse a Twisted server endpoint string."""
    description = text(value)
    if description.isdigit():
        raise ConfigError(
            f"must be an endpoint string: for port {description} use tcp:{description}:interface=127.0.0.1"
        )
    check_server(description)
    return description


def endpoints(value: Any) -> tuple[str, ...]:
    """Parse one or more server endpoint strings."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)) or not several:
        raise ConfigError(f"must be an endpoint string or a list of them, not {value!r}")
    return tuple(map(endpoint, several))


def client_endpoints(value: Any) -> tuple[str, ...]:
    """Parse any number of client endpoint strings."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)):
        raise ConfigError(f"must be a client endpoint string or a list of them, not {value!r}")
    for description in map(text, several):
        check_client(description)
    return tuple(several)


def database(value: Any) -> str:
    """Parse ``sqlite:PATH``, or a PostgreSQL URL without a password."""
    url = text(value)
    kind, _, rest = url.partition(":")
    if kind in ("postgresql", "postgres"):
        return _postgres(url, rest)
    if url.startswith("sqlite://"):
        path = "/" + url.removeprefix("sqlite:").lstrip("/")
        raise ConfigError(f"must be sqlite:PATH without //; did you mean sqlite:{path} or sqlite:{path[1:]}?")
    if kind != "sqlite":
        raise ConfigError(
            "must be sqlite:PATH, such as sqlite:synrepl.db or sqlite:/var/lib/synrepl.db, or postgresql://...,"
            f" not {kind + '://...' if rest.startswith('//') else repr(url)}"
        )
    if url == "sqlite:" or url.endswith("/"):
        raise ConfigError(f"needs the path of a file after sqlite:, not {url!r}")
    return url


def _postgres(url: str, rest: str) -> str:
    """Check a PostgreSQL URL. No message quotes the URL: it may contain a password."""
    if not rest.startswith("//"):
        raise ConfigError("must be postgresql://user@host/database, with // after the colon")
    try:
        parts = urlsplit(url)
        # A password may contain a slash that should have been written as %2F.
        has_password = ":" in rest.partition("?")[0].rpartition("@")[0]
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError("must be a URL such as postgresql://user@host/database") from None
    if has_password or any(name in ("password", "sslpassword") for name, _ in query):
        raise ConfigError(
            "contains a password, which other users of the machine could see: put the password into a pgpass"
            " file, and set ?passfile=/path or PGPASSFILE"
        )
    if parts.fragment or url.split() != [url]:
        raise ConfigError("must be a URL without spaces and #, such as postgresql://user@host/database")
    return url


def dialect(value: Any) -> Dialect | None:
    """Parse a dialect; None means auto."""
    if value == "auto":
        return None
    given = text(value)
    try:
        return Dialect.parse(given)
    except ConfigError as error:
        if re.fullmatch(r"0\.[\d.]+", given):
            raise ConfigError(f"cannot be {given}: {error}") from error
        hint = suggest(given, ("auto", "legacy", "middle", "current", "native"))
        raise ConfigError(
            f"must be auto, legacy, middle, current, native or a release such as 1.83, not {given!r}{hint}"
        ) from error


def upstream(value: Any) -> str | None:
    """Parse the HTTP address of another daemon, or a client endpoint string for its listener."""
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
            raise ConfigError(
                f"must be a URL such as http://hs.example:9093 or http://[::1]:9093, not {where!r}"
            )
        if parts.username is not None:
            raise ConfigError("contains a user name: set the secret with --secret-file")
        return where.rstrip("/")
    client_endpoints(where)
    return where


def names(value: Any) -> tuple[str, ...] | None:
    """Parse comma-separated names, or a list of names."""
    if value in (None, "", (), []):
        return None
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"must be a list of comma-separated names, not {value!r}")
    return tuple(sorted({word(one) for one in given}))


def fetch_rule(value: Any) -> str:
    """Parse the rule by which a replica fetches files."""
    if value not in ("eager", "lazy"):
        raise ConfigError(f"must be eager or lazy, not {value!r}")
    return str(value)


def maybe_word(value: Any) -> str | None:
    """Parse an optional name."""
    return None if value is None else word(value)


def maybe_text(value: Any) -> str | None:
    """Parse an optional text."""
    return None if value is None else text(value)


def file_name(value: Any) -> Path | None:
    """Parse the optional path of a file."""
    return None if value is None else Path(text(value))


def maybe_positive(value: Any) -> float | None:
    """Parse an optional number of seconds."""
    return None if value is None else positive(value)


def instance_map(value: Any) -> Mapping[str, str]:
    """Parse a table of instance names to HTTP addresses: URLs, or tables as in Synapse's configuration.

    The rows that a stream missed are fetched from these addresses (docs/reference/peers.md#http-catchup).
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a table of instance names and HTTP addresses, not {value!r}")
    return MappingProxyType({word(name): _instance_url(name, where) for name, where in value.items()})


def _instance_url(name: str, where: Any) -> str:
    """Parse the HTTP address of an instance."""
    if isinstance(where, Mapping):
        return _synapse_url(name, where)
    if not isinstance(where, str) or not re.match(r"https?://[^/\s]", where):
        raise ConfigError(
            f"must give {name} an HTTP address such as http://localhost:9101"
            f" or a table of host, port and tls, not {where!r}"
        )
    return where


def _synapse_url(name: str, where: Mapping[Any, Any]) -> str:
    """Return the URL for the `host`, `port` and `tls` of an instance, as in Synapse's configuration."""
    if "path" in where:
        raise ConfigError(
            f"has the Unix socket {where['path']!r} for {name}, but rows are fetched by HTTP over TCP: give"
            f" {name} a TCP replication listener, and set its host and port"
        )
    unknown = sorted(str(key) for key in where if key not in ("host", "port", "tls"))
    host, port, tls = where.get("host"), where.get("port"), where.get("tls", False)
    is_port = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536
    is_host = isinstance(host, str) and re.fullmatch(r"[^/\s@?#\[\]]+", host)
    if unknown or not (is_host and is_port and isinstance(tls, bool)):
        raise ConfigError(
            f"has {dict(where)!r} for {name}, which is not a table of host, port (1 to 65535) and tls (true"
            " or false; default false), such as {host: localhost, port: 9101}"
        )
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in str(host) else host}:{port}"


def tables(value: Any) -> "tuple[TableStream, ...]":
    """Parse the streams that are read from tables. `Settings.build` sets their default writer."""
    if value in ((), [], None):
        return ()
    from synrepl.storage.tables.layout import table_streams

    return tuple(table_streams(value, default_writer="master"))


def redis(value: Any) -> "RedisAddress | None":
    """Parse the address of a Redis."""
    if value is None:
        return None
    from synrepl.transports.redis.address import RedisAddress

    return RedisAddress.parse(text(value))


def redis_writes(value: Any) -> "tuple[StreamWrite, ...]":
    """Parse the streams that are published to Redis."""
    if value in ((), [], None, ""):
        return ()
    from synrepl.replication.write_policy import read_writes

    return read_writes(value)


def maybe_database(value: Any) -> str | None:
    """Parse an optional database."""
    return None if value is None else database(value)
