"""Everything an operator can choose, declared once.

Flags, keys of the file, help and the manual's table derive from it. The order is default, file, flag: a later
one wins. What makes no sense is a `ConfigError` of one line that says which setting, and what would.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
import yaml
from twisted.internet.endpoints import clientFromString, serverFromString

from synrepl.errors import ConfigError
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.writes import Write
    from synrepl.storage.tables.layout import TableStream
    from synrepl.transports.redis.address import RedisAddress

__all__ = ["Setting", "Settings", "read_file", "settings", "suggestion", "table_for_the_manual"]

MIB: Final = 1024 * 1024
UNITS: Final = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of `Settings`: `parse` takes the text of a flag as well as the value in a file."""

    name: str
    default: Any
    help: str
    parse: Callable[[Any], Any]
    metavar: str
    kind: str  # "value", "switch", "list" (a flag that may be repeated) or "file" (not a flag at all)

    @property
    def flag(self) -> str:
        """The name on the command line, without its dashes."""
        return self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default, for people."""
        if self.default in (None, {}, ()):
            return "none"
        if isinstance(self.default, tuple):
            return " ".join(self.default)
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return str(self.default)


def setting(
    default: Any, help: str, *, parse: Callable[[Any], Any], metavar: str = "TEXT", kind: str = "value"
) -> Any:
    """Declares a line of `Settings`. The default is written as it would be in the file."""
    return dataclasses.field(
        metadata={
            "setting": {"default": default, "help": help, "parse": parse, "metavar": metavar, "kind": kind}
        }
    )


# How values are read


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
    found = re.fullmatch(r"(\d+) ?(B|KiB|MiB|GiB|TiB)?", str(value).strip(), re.ASCII)
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
    try:
        serverFromString(_NO_REACTOR, description)  # type: ignore[no-untyped-call]
    except Exception as error:  # parsers of endpoints, plugins among them, raise whatever they like
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"is a Twisted server endpoint string such as tcp:9092:interface=127.0.0.1,"
            f" not {description!r} ({why})"
        ) from error
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
        try:
            clientFromString(_NO_REACTOR, description)  # type: ignore[no-untyped-call]
        except Exception as error:  # parsers of endpoints, plugins among them, raise whatever they like
            why = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"is a Twisted client endpoint string such as tcp:localhost:9092, not {description!r} ({why})"
            ) from error
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
    if value == "native":
        raise ConfigError("native is not in this release yet")
    try:
        return Dialect.parse(text(value))
    except ConfigError as error:
        hint = suggestion(str(value), ("auto", "legacy", "middle", "current"))
        raise ConfigError(
            f"is auto, legacy, middle, current or a release such as 1.83{hint}: {error}"
        ) from error


def not_yet(value: Any) -> None:
    """Something that later releases bring."""
    if value is not None:
        raise ConfigError("is not in this release yet")


def file_name(value: Any) -> Path | None:
    """The path of a file."""
    return None if value is None else Path(text(value))


def maybe_positive(value: Any) -> float | None:
    """A number of seconds, or none."""
    return None if value is None else positive(value)


def instance_map(value: Any) -> Mapping[str, str]:
    """Instance names to HTTP addresses."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"is a table of instance names and HTTP addresses, not {value!r}")
    for name, url in value.items():
        word(name)
        if not isinstance(url, str) or not re.match(r"https?://[^/\s]", url):
            raise ConfigError(
                f"has {url!r} for {name}, which is no HTTP address such as http://localhost:9101"
            )
    return MappingProxyType({str(name): url for name, url in value.items()})


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


def redis_writes(value: Any) -> "tuple[Write, ...]":
    """Streams that are told on Redis."""
    if value in ((), [], None, ""):
        return ()
    from synrepl.replication.writes import read_writes

    return read_writes(value)


def maybe_database(value: Any) -> str | None:
    """A database, or none."""
    return None if value is None else database(value)


# The settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything an operator can choose, in the order in which the manual lists it."""

    server_name: str = setting(
        "localhost", "The server_name of the homeserver; followers check it.", parse=word, metavar="NAME"
    )
    instance_name: str = setting("master", "The name of this writer.", parse=word, metavar="NAME")
    listen: tuple[str, ...] = setting(
        ("tcp:9092:interface=127.0.0.1",),
        "Where followers connect: a Twisted server endpoint string. May be repeated.",
        parse=endpoints,
        metavar="ENDPOINT",
        kind="list",
    )
    http: str = setting(
        "tcp:9093:interface=127.0.0.1",
        "Where the HTTP API, the status page and the metrics are.",
        parse=endpoint,
        metavar="ENDPOINT",
    )
    database: str = setting(
        "sqlite:synrepl.db",
        "Where the log is kept: sqlite:relative.db, sqlite:/absolute/path.db or postgresql://user@host/database.",
        parse=database,
        metavar="URL",
    )
    redis: "RedisAddress | None" = setting(  # noqa: RUF009  # gives a field
        None,
        "The Redis of the deployment, whose channel is followed: redis://host:6379, rediss://host,"
        " redis+unix:///path or redis+sentinel://host1,host2/service; ?password_file=, ?ca_file= ...",
        parse=redis,
        metavar="URL",
    )
    redis_writes: "tuple[Write, ...]" = setting(  # noqa: RUF009  # gives a field
        (),
        "The streams that this process writes on Redis, with commas between, or all. None: it only listens.",
        parse=redis_writes,
        metavar="STREAMS",
    )
    follow: tuple[str, ...] = setting(
        (),
        "A server of replication to take streams from, as a worker does: a Twisted client endpoint string."
        " May be repeated.",
        parse=client_endpoints,
        metavar="ENDPOINT",
        kind="list",
    )
    upstream: None = setting(
        None,
        "Makes this daemon a replica of another one. Not in this release yet.",
        parse=not_yet,
        metavar="URL",
    )
    lease_seconds: float | None = setting(
        None,
        "How long a reader who has gone keeps the log from being trimmed;"
        " unless set, an hour for anonymous readers and 7 days for registered ones.",
        parse=maybe_positive,
        metavar="SECONDS",
    )
    lease_bytes: int = setting(
        1024 * MIB, "How much of the log a reader may hold back.", parse=size, metavar="BYTES"
    )
    retain_seconds: float = setting(
        604_800, "How long the log is kept although nobody needs it.", parse=positive, metavar="SECONDS"
    )
    secret_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A file with the shared secret, asked for and sent as Authorization: Bearer on HTTP.",
        parse=file_name,
        metavar="PATH",
    )
    instance_map: Mapping[str, str] = setting(
        MappingProxyType({}),
        "Where to pull missed rows of writers that are not us: instance name to HTTP address.",
        parse=instance_map,
        metavar="TABLE",
        kind="file",
    )
    table_streams: "tuple[TableStream, ...]" = setting(  # noqa: RUF009  # gives a field
        (),
        "Streams whose facts are rows of the homeserver's tables: a list of `stream`, `table`, `row` ...",
        parse=tables,
        metavar="LIST",
        kind="file",
    )
    tables_database: str | None = setting(
        None,
        "The database that has these tables, if it is not the one of the log.",
        parse=maybe_database,
        metavar="URL",
    )
    dialect: Dialect | None = setting(  # noqa: RUF009  # gives a field
        "auto",
        "How connections speak: auto, legacy, middle, current or a release."
        " Auto cannot tell middle from current.",
        parse=dialect,
        metavar="DIALECT",
    )
    insecure: bool = setting(False, "Listen beyond loopback without any guard.", parse=switch, kind="switch")
    ping_seconds: float = setting(
        5, "How often a quiet connection says PING.", parse=positive, metavar="SECONDS"
    )
    timeout_seconds: float = setting(25, "How long a peer may be silent.", parse=positive, metavar="SECONDS")
    reader_bytes: int = setting(
        8 * MIB,
        "How many bytes of the newest facts followers share in memory;"
        " who is further behind reads from the log.",
        parse=size,
        metavar="BYTES",
    )
    max_body_bytes: int = setting(
        64 * MIB, "The longest body of an HTTP request.", parse=size, metavar="BYTES"
    )
    secret: str | None = dataclasses.field(default=None, repr=False)
    warnings: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    @classmethod
    def build(
        cls, flags: Mapping[str, Any] = MappingProxyType({}), *, file: Path | None = None
    ) -> "Settings":
        """The settings, checked: defaults, what `file` says, what `flags` (by names of fields) say."""
        given = {**(read_file(file) if file is not None else {}), **flags}
        origin = f" in {file}" if file is not None else ""
        values: dict[str, Any] = {}
        for one in settings():
            value = given.pop(one.name, one.default)
            where = f"--{one.flag}" if one.name in flags else f"{one.name}{origin}"
            try:
                values[one.name] = one.parse(value)
            except ConfigError as error:
                raise ConfigError(f"{where} {error}") from error
        for unknown in given:
            raise ConfigError(
                f"there is no setting {unknown}{suggestion(unknown, [one.name for one in settings()])}"
            )
        warnings: list[str] = []
        if values["secret_file"] is not None:
            values["secret"] = _read_secret(values["secret_file"], warnings)
        built = cls(**values, warnings=tuple(warnings))
        built = dataclasses.replace(
            built,
            table_streams=tuple(
                msgspec.structs.replace(one, default_writer=built.instance_name)
                for one in built.table_streams
            ),
        )
        _check_open(built)
        _check_name(built)
        if any(one.for_catch_up for one in built.table_streams) and not (built.redis or built.follow):
            raise ConfigError(
                "table_streams: with `catch_up: true` the facts of a stream are heard from others: say from"
                " whom, by --redis or --follow"
            )
        if built.timeout_seconds <= built.ping_seconds:
            raise ConfigError(
                f"--timeout-seconds is longer than --ping-seconds ({built.ping_seconds:g}) or peers time out"
            )
        return built

    @property
    def database_path(self) -> Path:
        """Where the SQLite file is."""
        return Path(self.database.removeprefix("sqlite:"))


def settings() -> list[Setting]:
    """Every setting, in the order of the manual."""
    return [
        Setting(name=field.name, **field.metadata["setting"])
        for field in dataclasses.fields(Settings)
        if "setting" in field.metadata
    ]


def read_file(path: Path) -> dict[str, Any]:
    """What a YAML file sets. Unknown keys are refused, with the nearest known one."""
    try:
        found = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected `key: value` lines")
    known = [one.name for one in settings()]
    for key in found:
        if key not in known:
            raise ConfigError(
                f"{path}: there is no setting {key}{suggestion(str(key).replace('-', '_'), known)}"
            )
    return found


def suggestion(given: str, known: Sequence[str]) -> str:
    """``; did you mean ...?`` if a known name is near."""
    import difflib  # Here, for it is large, and seldom needed.

    near = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def table_for_the_manual() -> str:
    """The table of settings, in Markdown."""
    lines = ["| flag | key in the file | default | |", "|---|---|---|---|"]
    for one in settings():
        flag = {"file": "", "switch": f"`--{one.flag}`"}.get(one.kind, f"`--{one.flag} {one.metavar}`")
        lines.append(f"| {flag} | `{one.name}` | `{one.default_text}` | {one.help} |")
    return "\n".join(lines) + "\n"


# What may be open


def is_loopback(description: str) -> bool:
    """Whether only this machine can connect to such an endpoint.

    Sockets that someone else opened (``systemd:``) count as open, since nothing here says how far they reach.
    """
    kind, *rest = _split(description)
    if kind == "haproxy" and rest:
        return is_loopback(description.split(":", 1)[1])
    if kind == "unix":
        return True
    interfaces = [part.removeprefix("interface=") for part in rest if part.startswith("interface=")]
    if not interfaces:
        # The third positional argument of tcp, tcp6 and ssl is the interface too, but only tcp has it there.
        interfaces = rest[1:2] if kind in ("tcp", "tcp6") and "=" not in "".join(rest[1:2]) else []
    if not interfaces:
        return False
    interface = interfaces[-1].split("%")[0]
    if interface == "localhost":
        return True
    try:
        return ip_address(interface).is_loopback
    except ValueError:
        return False


def _split(description: str) -> list[str]:
    parts = re.split(r"(?<!\\):", description)
    return [re.sub(r"\\(.)", r"\1", part) for part in parts]


def _check_open(built: Settings) -> None:
    """Closed by default: what listens beyond this machine needs a guard, or a word that it has none."""
    if built.insecure:
        return
    for description in built.listen:
        if not is_loopback(description):
            raise ConfigError(
                f"--listen {description} can be reached from other machines, and the line"
                f" protocol has no guard: {_fix(description)}, or say --insecure"
            )
    if built.secret is None and not is_loopback(built.http):
        raise ConfigError(
            f"--http {built.http} can be reached from other machines without a secret:"
            f" {_fix(built.http)}, name a --secret-file, or say --insecure"
        )


def _check_name(built: Settings) -> None:
    """A writer's name is its own: two that share one make the others drop facts of both."""
    if not built.redis_writes:
        return
    if built.redis is None:
        raise ConfigError("--redis-writes needs --redis: there is no channel to write on")
    taken = {"master", "main", *built.instance_map}
    for name in {one.writer or built.instance_name for one in built.redis_writes}:
        if name in taken:
            raise ConfigError(
                f"--instance-name {name} is the name of another writer on Redis: give this process its own,"
                " such as synrepl1, if it is to write there"
            )


def _fix(description: str) -> str:
    kind, *rest = _split(description)
    if kind in ("tcp", "ssl") and rest and not any(part.startswith("interface=") for part in rest):
        return f"say {description}:interface=127.0.0.1"
    return "listen on 127.0.0.1"


def _read_secret(path: Path, warnings: list[str]) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read the secret file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the secret file {path} is not text") from error
    if not secret:
        raise ConfigError(f"the secret file {path} is empty")
    if not secret.isprintable() or not secret.isascii():
        raise ConfigError(f"the secret file {path} holds more than one line of plain characters")
    if mode & 0o004:
        warnings.append(f"everyone on this machine can read the secret file {path}; say chmod 600 {path}")
    return secret


class _NoReactor:
    """Stands in for the reactor while an endpoint string is only checked."""


_NO_REACTOR: Final = _NoReactor()
