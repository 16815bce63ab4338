"""The settings of a daemon, each declared once."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from synrepl.config import values
from synrepl.config.files import read_file, read_keys, read_secret
from synrepl.config.validation import validate
from synrepl.errors import ConfigError, suggest
from synrepl.ports.access import Key, Keyring
from synrepl.transports.credentials import Credentials
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.write_policy import StreamWrite
    from synrepl.storage.tables.layout import TableStream
    from synrepl.transports.redis.address import RedisAddress

__all__ = ["Setting", "Settings", "render_table", "setting", "settings"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of `Settings`. `parse` accepts the text of a flag and the value of a file."""

    name: str
    default: Any
    help: str
    parse: Callable[[Any], Any]
    metavar: str
    kind: str  # "value", "switch", "list" (a repeatable flag) or "file" (a file key without a flag)

    @property
    def flag(self) -> str:
        """The name on the command line, without leading dashes."""
        return self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as shown in help."""
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
    """Declare a field of `Settings`. The default is written as in the file."""
    return dataclasses.field(
        metadata={
            "setting": {"default": default, "help": help, "parse": parse, "metavar": metavar, "kind": kind}
        }
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a daemon, in the order of the manual."""

    server_name: str = setting(
        "localhost",
        "The server_name of the homeserver, which followers check.",
        parse=values.word,
        metavar="NAME",
    )
    instance_name: str = setting(
        "master",
        "The instance name of this writer.",
        parse=values.word,
        metavar="NAME",
    )
    listen: tuple[str, ...] = setting(
        ("tcp:9092:interface=127.0.0.1",),
        "The replication listener for followers, as a Twisted server endpoint string. May be repeated.",
        parse=values.endpoints,
        metavar="ENDPOINT",
        kind="list",
    )
    http: str = setting(
        "tcp:9093:interface=127.0.0.1",
        "The listener of the HTTP API, the status page and the metrics, as a Twisted server endpoint string.",
        parse=values.endpoint,
        metavar="ENDPOINT",
    )
    database: str = setting(
        "sqlite:synrepl.db",
        "The database of the log: sqlite:relative.db, sqlite:/absolute/path.db or postgresql://user@host/database.",
        parse=values.database,
        metavar="URL",
    )
    redis: "RedisAddress | None" = setting(  # noqa: RUF009  # gives a field
        None,
        "The Redis of the deployment, whose replication channel this daemon follows: redis://host:6379,"
        " rediss://host, redis+unix:///path or redis+sentinel://host1,host2/service. Options follow in the"
        " query: ?password_file=, ?ca_file= ...",
        parse=values.redis,
        metavar="URL",
    )
    redis_writes: "tuple[StreamWrite, ...]" = setting(  # noqa: RUF009  # gives a field
        (),
        "The streams that this daemon publishes to Redis: comma-separated, or all. None: it only subscribes.",
        parse=values.redis_writes,
        metavar="STREAMS",
    )
    follow: tuple[str, ...] = setting(
        (),
        "A replication server to follow, as a worker does, as a Twisted client endpoint string."
        " May be repeated.",
        parse=values.client_endpoints,
        metavar="ENDPOINT",
        kind="list",
    )
    upstream: str | None = setting(
        None,
        "Makes this daemon a replica of the daemon at this address: http://host:9093 (all over HTTP) or"
        " a Twisted client endpoint string such as tcp:host:9092 (native).",
        parse=values.upstream,
        metavar="URL",
    )
    snapshot: str | None = setting(
        None,
        "A directory or URI with a snapshot (synrepl pipeline compact) that an empty log is loaded from."
        " A replica then follows its upstream from that position; a primary begins a new epoch.",
        parse=values.maybe_text,
        metavar="DIR",
    )
    upstream_streams: tuple[str, ...] | None = setting(
        None,
        "The streams that a replica copies, comma-separated. None: all.",
        parse=values.names,
        metavar="STREAMS",
    )
    upstream_writers: tuple[str, ...] | None = setting(
        None,
        "The writers whose facts a replica copies, comma-separated. None: all.",
        parse=values.names,
        metavar="WRITERS",
    )
    replica_name: str | None = setting(
        None,
        "The name under which a replica registers at its upstream. None: its instance name and the start of"
        " its uuid.",
        parse=values.maybe_word,
        metavar="NAME",
    )
    anonymous: bool = setting(
        False,
        "Do not register this replica: its upstream retains the log for it for an hour only.",
        parse=values.switch,
        kind="switch",
    )
    resync_on_fork: bool = setting(
        False,
        "After a fork, let this replica join its upstream again by itself. The facts that only it has are"
        " written to a file first.",
        parse=values.switch,
        kind="switch",
    )
    stale_seconds: float = setting(
        60,
        "A replica that was last up to date longer ago than this is stale, hence not ready (/readyz).",
        parse=values.positive,
        metavar="SECONDS",
    )
    refuse_stale_reads: bool = setting(
        False,
        "Let a replica that is not ready answer reads with 503 and Retry-After.",
        parse=values.switch,
        kind="switch",
    )
    advertise: str | None = setting(
        None,
        "The host name that other daemons connect to this one by. None: that of its listeners.",
        parse=values.maybe_word,
        metavar="HOST",
    )
    heartbeat_seconds: float = setting(
        1, "The time between two heartbeats to replicas.", parse=values.positive, metavar="SECONDS"
    )
    max_file_bytes: int = setting(
        16 * 1024 * values.MIB, "The size limit of a file by checksum.", parse=values.size, metavar="BYTES"
    )
    files: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "The directory for files by checksum. None: the path of the database with .files appended.",
        parse=values.file_name,
        metavar="DIR",
    )
    fetch_files: str = setting(
        "eager",
        "When a replica fetches a file: eager (at once) or lazy (when a client requests it).",
        parse=values.fetch_rule,
        metavar="RULE",
    )
    lease_seconds: float | None = setting(
        None,
        "How long the lease of a disconnected reader keeps the log from being trimmed."
        " None: an hour for anonymous readers, 7 days for registered ones.",
        parse=values.maybe_positive,
        metavar="SECONDS",
    )
    lease_bytes: int = setting(
        1024 * values.MIB,
        "How much of the log a lease may retain.",
        parse=values.size,
        metavar="BYTES",
    )
    retain_seconds: float = setting(
        604_800,
        "How long the log retains facts that no lease needs.",
        parse=values.positive,
        metavar="SECONDS",
    )
    secret_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A file with the shared secret: required of clients and sent to other daemons, over HTTP as"
        " Authorization: Bearer.",
        parse=values.file_name,
        metavar="PATH",
    )
    keys_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A file with a line `name secret [rights [streams]]` for each peer with a key of its own. Other peers"
        " use the shared secret. Rights: read, write, replicate, administer.",
        parse=values.file_name,
        metavar="PATH",
    )
    ca_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A PEM file with the CA certificates that https:// peers are verified against. None: those of the"
        " system.",
        parse=values.file_name,
        metavar="PATH",
    )
    certificate_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A PEM file with the client certificate for https:// peers that require one.",
        parse=values.file_name,
        metavar="PATH",
    )
    private_key_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None, "A PEM file with the private key of that certificate.", parse=values.file_name, metavar="PATH"
    )
    allowed_hosts: tuple[str, ...] | None = setting(
        None,
        "Host names with dots that HTTP clients use for this daemon, comma-separated. Needed only without a"
        " secret: requests for other host names are refused, against DNS rebinding.",
        parse=values.names,
        metavar="NAMES",
    )
    instance_map: Mapping[str, str] = setting(
        MappingProxyType({}),
        "The HTTP addresses to fetch the missing rows of other writers from, by instance name: each a URL, or"
        " `host`, `port` and `tls` as in Synapse. The daemon's own name is ignored.",
        parse=values.instance_map,
        metavar="TABLE",
        kind="file",
    )
    table_streams: "tuple[TableStream, ...]" = setting(  # noqa: RUF009  # gives a field
        (),
        "The streams whose facts are rows of the homeserver's tables: a list of `stream`, `table`, `row` ...",
        parse=values.tables,
        metavar="LIST",
        kind="file",
    )
    tables_database: str | None = setting(
        None,
        "The database with these tables. None: the database of the log.",
        parse=values.maybe_database,
        metavar="URL",
    )
    dialect: Dialect | None = setting(  # noqa: RUF009  # gives a field
        "auto",
        "The dialect of connections: auto, legacy, middle, current, native (replicas only) or a release."
        " auto cannot tell middle from current.",
        parse=values.dialect,
        metavar="DIALECT",
    )
    insecure: bool = setting(
        False, "Allow listeners beyond loopback without authentication.", parse=values.switch, kind="switch"
    )
    ping_seconds: float = setting(
        5,
        "The time after which an idle connection sends PING.",
        parse=values.positive,
        metavar="SECONDS",
    )
    timeout_seconds: float = setting(
        25,
        "The time after which a silent connection is closed.",
        parse=values.positive,
        metavar="SECONDS",
    )
    reader_bytes: int = setting(
        8 * values.MIB,
        "The buffer of the newest facts that followers share in memory."
        " Followers further behind read from the log.",
        parse=values.size,
        metavar="BYTES",
    )
    max_body_bytes: int = setting(
        64 * values.MIB, "The size limit of the body of an HTTP request.", parse=values.size, metavar="BYTES"
    )
    secret: str | None = dataclasses.field(default=None, repr=False)
    keys: tuple[Key, ...] = dataclasses.field(default=(), repr=False)
    warnings: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    @classmethod
    def build(
        cls, flags: Mapping[str, Any] = MappingProxyType({}), *, file: Path | None = None
    ) -> "Settings":
        """Build checked settings from the defaults, the YAML `file` and `flags`; a later one overrides.

        `flags` maps field names to values, as text or as in the file. Raises `ConfigError`::

            settings = Settings.build({"server_name": "example.org", "lease_bytes": "2GiB"})
        """
        unparsed = {
            **(read_file(file, [one.name for one in settings()]) if file is not None else {}),
            **flags,
        }
        origin = f" in {file}" if file is not None else ""
        parsed: dict[str, Any] = {}
        for one in settings():
            value = unparsed.pop(one.name, one.default)
            where = f"--{one.flag}" if one.name in flags else f"{one.name}{origin}"
            try:
                parsed[one.name] = one.parse(value)
            except ConfigError as error:
                raise ConfigError(f"{where} {error}") from error
            except (OverflowError, ValueError) as error:
                # YAML numbers are unbounded; conversion to a float or a string is not.
                raise ConfigError(f"{where} cannot be used: {' '.join(str(error).split())}") from error
        for unknown in unparsed:
            raise ConfigError(
                f"there is no setting {unknown}{suggest(unknown, [one.name for one in settings()])}"
            )
        warnings: list[str] = []
        if parsed["secret_file"] is not None:
            parsed["secret"] = read_secret(parsed["secret_file"], warnings)
        if parsed["keys_file"] is not None:
            parsed["keys"] = read_keys(parsed["keys_file"], warnings)
        built = cls(**parsed, warnings=tuple(warnings))
        built = dataclasses.replace(
            built,
            instance_map=built.without_own_name(),
            table_streams=tuple(
                msgspec.structs.replace(one, default_writer=built.instance_name)
                for one in built.table_streams
            ),
        )
        validate(built)
        return built

    def without_own_name(self) -> Mapping[str, str]:
        """Return the instance map without the name of this daemon, which a shared map contains too.

        `master` and `main` stay: they name Synapse's main process (docs/reference/peers.md#http-catchup),
        even if this daemon has the default name.
        """
        own = {self.instance_name} - {"master", "main"}
        return MappingProxyType({name: url for name, url in self.instance_map.items() if name not in own})

    def keyring(self) -> Keyring:
        """Return the secrets that this daemon accepts from peers."""
        return Keyring(self.secret, self.keys)

    def credentials(self) -> Credentials:
        """Return the credentials that this daemon sends to other daemons."""
        if not (self.ca_file or self.certificate_file):
            return Credentials(self.secret)
        from synrepl.transports.tls import TlsFiles

        files = TlsFiles(
            ca_file=self.ca_file, cert_file=self.certificate_file, key_file=self.private_key_file
        )
        return Credentials(self.secret, files)

    @property
    def database_path(self) -> Path:
        """The path of the SQLite file. With PostgreSQL: the stem of the names of local files."""
        is_sqlite = self.database.startswith("sqlite:")
        return Path(self.database.removeprefix("sqlite:")) if is_sqlite else Path("synrepl")

    @property
    def files_path(self) -> Path:
        """The directory for files by checksum."""
        path = self.database_path
        return self.files if self.files is not None else path.with_name(f"{path.name}.files")


def settings() -> list[Setting]:
    """Return every setting, in the order of the manual."""
    return [
        Setting(name=field.name, **field.metadata["setting"])
        for field in dataclasses.fields(Settings)
        if "setting" in field.metadata
    ]


def render_table() -> str:
    """Return the Markdown table of settings for the manual."""
    lines = ["| flag | key in the file | default | |", "|---|---|---|---|"]
    for one in settings():
        flag = {"file": "", "switch": f"`--{one.flag}`"}.get(one.kind, f"`--{one.flag} {one.metavar}`")
        lines.append(f"| {flag} | `{one.name}` | `{one.default_text}` | {one.help} |")
    return "\n".join(lines) + "\n"
