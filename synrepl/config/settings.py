"""Everything an operator can choose, declared once."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from synrepl.config import values
from synrepl.config.files import read_file, read_keys, read_secret
from synrepl.config.setting import Setting, setting
from synrepl.config.suggestion import suggestion
from synrepl.config.validation import check
from synrepl.errors import ConfigError
from synrepl.ports.access import Key, Keyring
from synrepl.transports.credentials import Credentials
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.write_policy import StreamWrite
    from synrepl.storage.tables.layout import TableStream
    from synrepl.transports.redis.address import RedisAddress

__all__ = ["Settings", "settings", "table_for_the_manual"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything an operator can choose, in the order in which the manual lists it."""

    server_name: str = setting(
        "localhost",
        "The server_name of the homeserver; followers check it.",
        parse=values.word,
        metavar="NAME",
    )
    instance_name: str = setting("master", "The name of this writer.", parse=values.word, metavar="NAME")
    listen: tuple[str, ...] = setting(
        ("tcp:9092:interface=127.0.0.1",),
        "Where followers connect: a Twisted server endpoint string. May be repeated.",
        parse=values.endpoints,
        metavar="ENDPOINT",
        kind="list",
    )
    http: str = setting(
        "tcp:9093:interface=127.0.0.1",
        "Where the HTTP API, the status page and the metrics are.",
        parse=values.endpoint,
        metavar="ENDPOINT",
    )
    database: str = setting(
        "sqlite:synrepl.db",
        "Where the log is kept: sqlite:relative.db, sqlite:/absolute/path.db or postgresql://user@host/database.",
        parse=values.database,
        metavar="URL",
    )
    redis: "RedisAddress | None" = setting(  # noqa: RUF009  # gives a field
        None,
        "The Redis of the deployment, whose channel is followed: redis://host:6379, rediss://host,"
        " redis+unix:///path or redis+sentinel://host1,host2/service; ?password_file=, ?ca_file= ...",
        parse=values.redis,
        metavar="URL",
    )
    redis_writes: "tuple[StreamWrite, ...]" = setting(  # noqa: RUF009  # gives a field
        (),
        "The streams that this process writes on Redis, with commas between, or all. None: it only listens.",
        parse=values.redis_writes,
        metavar="STREAMS",
    )
    follow: tuple[str, ...] = setting(
        (),
        "A server of replication to take streams from, as a worker does: a Twisted client endpoint string."
        " May be repeated.",
        parse=values.client_endpoints,
        metavar="ENDPOINT",
        kind="list",
    )
    upstream: str | None = setting(
        None,
        "Makes this daemon a replica: http://host:9093 (all over HTTP) or a Twisted client endpoint string"
        " such as tcp:host:9092 (native).",
        parse=values.upstream,
        metavar="URL",
    )
    snapshot: str | None = setting(
        None,
        "A folder, or an URI, with a snapshot (synrepl pipeline compact): a log that is empty begins with it."
        " A replica goes on from there; a primary begins a new epoch.",
        parse=values.maybe_text,
        metavar="DIR",
    )
    upstream_streams: tuple[str, ...] | None = setting(
        None,
        "The streams that a replica takes, with commas between. None: all.",
        parse=values.names,
        metavar="STREAMS",
    )
    upstream_writers: tuple[str, ...] | None = setting(
        None,
        "The writers whose facts a replica takes, with commas between. None: all.",
        parse=values.names,
        metavar="WRITERS",
    )
    replica_name: str | None = setting(
        None,
        "What a replica is called at its upstream; unless set, its instance name and the start of its uuid.",
        parse=values.maybe_word,
        metavar="NAME",
    )
    anonymous: bool = setting(
        False,
        "A replica that is not registered: the log is kept for it for an hour only.",
        parse=values.switch,
        kind="switch",
    )
    resync_on_fork: bool = setting(
        False,
        "A replica whose history has parted from its upstream's joins again by itself; what only it had is"
        " written to a file first.",
        parse=values.switch,
        kind="switch",
    )
    stale_seconds: float = setting(
        60,
        "A replica that had everything longer ago than this is stale: not ready (/readyz).",
        parse=values.positive,
        metavar="SECONDS",
    )
    refuse_stale_reads: bool = setting(
        False,
        "A replica that is not ready answers reads with 503 and Retry-After.",
        parse=values.switch,
        kind="switch",
    )
    advertise: str | None = setting(
        None,
        "The host name by which replicas and other daemons reach this one; unless set, where it listens.",
        parse=values.maybe_word,
        metavar="HOST",
    )
    heartbeat_seconds: float = setting(
        1, "How often replicas hear that all is well.", parse=values.positive, metavar="SECONDS"
    )
    max_file_bytes: int = setting(
        16 * 1024 * values.MIB, "The largest file by checksum.", parse=values.size, metavar="BYTES"
    )
    files: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "The directory for files by checksum; unless set, the path of the database with .files behind it.",
        parse=values.file_name,
        metavar="DIR",
    )
    fetch_files: str = setting(
        "eager",
        "When a replica fetches files: eager, or lazy (when somebody wants one).",
        parse=values.fetching,
        metavar="RULE",
    )
    lease_seconds: float | None = setting(
        None,
        "How long a reader who has gone keeps the log from being trimmed;"
        " unless set, an hour for anonymous readers and 7 days for registered ones.",
        parse=values.maybe_positive,
        metavar="SECONDS",
    )
    lease_bytes: int = setting(
        1024 * values.MIB, "How much of the log a reader may hold back.", parse=values.size, metavar="BYTES"
    )
    retain_seconds: float = setting(
        604_800,
        "How long the log is kept although nobody needs it.",
        parse=values.positive,
        metavar="SECONDS",
    )
    secret_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A file with the shared secret, asked for and sent as Authorization: Bearer on HTTP.",
        parse=values.file_name,
        metavar="PATH",
    )
    keys_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A file with a line `name secret [rights [streams]]` for each peer that has a key of its own; the"
        " others show the shared secret. Rights: read, write, replicate, administer.",
        parse=values.file_name,
        metavar="PATH",
    )
    ca_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "Certificates, in PEM, of the CAs that https:// peers must be signed by; unless set, those of the"
        " system.",
        parse=values.file_name,
        metavar="PATH",
    )
    certificate_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None,
        "A certificate, in PEM, to show to https:// peers that want one.",
        parse=values.file_name,
        metavar="PATH",
    )
    private_key_file: Path | None = setting(  # noqa: RUF009  # gives a field
        None, "The key of that certificate, in PEM.", parse=values.file_name, metavar="PATH"
    )
    allowed_hosts: tuple[str, ...] | None = setting(
        None,
        "Names with dots under which clients reach the HTTP API, with commas between; needed only without any"
        " secret: requests for other names are refused (DNS rebinding).",
        parse=values.names,
        metavar="NAMES",
    )
    instance_map: Mapping[str, str] = setting(
        MappingProxyType({}),
        "Where to pull missed rows of writers that are not us: instance name to HTTP address, as a URL, or as"
        " `host`, `port` and `tls`, as Synapse has it. The daemon's own name is ignored.",
        parse=values.instance_map,
        metavar="TABLE",
        kind="file",
    )
    table_streams: "tuple[TableStream, ...]" = setting(  # noqa: RUF009  # gives a field
        (),
        "Streams whose facts are rows of the homeserver's tables: a list of `stream`, `table`, `row` ...",
        parse=values.tables,
        metavar="LIST",
        kind="file",
    )
    tables_database: str | None = setting(
        None,
        "The database that has these tables, if it is not the one of the log.",
        parse=values.maybe_database,
        metavar="URL",
    )
    dialect: Dialect | None = setting(  # noqa: RUF009  # gives a field
        "auto",
        "How connections speak: auto, legacy, middle, current, native (replicas only) or a release."
        " Auto cannot tell middle from current.",
        parse=values.dialect,
        metavar="DIALECT",
    )
    insecure: bool = setting(
        False, "Listen beyond loopback without any guard.", parse=values.switch, kind="switch"
    )
    ping_seconds: float = setting(
        5, "How often a quiet connection says PING.", parse=values.positive, metavar="SECONDS"
    )
    timeout_seconds: float = setting(
        25, "How long a peer may be silent.", parse=values.positive, metavar="SECONDS"
    )
    reader_bytes: int = setting(
        8 * values.MIB,
        "How many bytes of the newest facts followers share in memory;"
        " who is further behind reads from the log.",
        parse=values.size,
        metavar="BYTES",
    )
    max_body_bytes: int = setting(
        64 * values.MIB, "The longest body of an HTTP request.", parse=values.size, metavar="BYTES"
    )
    secret: str | None = dataclasses.field(default=None, repr=False)
    keys: tuple[Key, ...] = dataclasses.field(default=(), repr=False)
    warnings: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    @classmethod
    def build(
        cls, flags: Mapping[str, Any] = MappingProxyType({}), *, file: Path | None = None
    ) -> "Settings":
        """The settings, checked: defaults, what `file` says, what `flags` (by names of fields) say."""
        given = {**(read_file(file, [one.name for one in settings()]) if file is not None else {}), **flags}
        origin = f" in {file}" if file is not None else ""
        found: dict[str, Any] = {}
        for one in settings():
            value = given.pop(one.name, one.default)
            where = f"--{one.flag}" if one.name in flags else f"{one.name}{origin}"
            try:
                found[one.name] = one.parse(value)
            except ConfigError as error:
                raise ConfigError(f"{where} {error}") from error
            except (OverflowError, ValueError) as error:
                # Numbers of YAML have no bound; as a float or a text they have.
                raise ConfigError(f"{where} cannot be used: {' '.join(str(error).split())}") from error
        for unknown in given:
            raise ConfigError(
                f"there is no setting {unknown}{suggestion(unknown, [one.name for one in settings()])}"
            )
        warnings: list[str] = []
        if found["secret_file"] is not None:
            found["secret"] = read_secret(found["secret_file"], warnings)
        if found["keys_file"] is not None:
            found["keys"] = read_keys(found["keys_file"], warnings)
        built = cls(**found, warnings=tuple(warnings))
        built = dataclasses.replace(
            built,
            instance_map=built.without_own_name(),
            table_streams=tuple(
                msgspec.structs.replace(one, default_writer=built.instance_name)
                for one in built.table_streams
            ),
        )
        check(built)
        return built

    def without_own_name(self) -> Mapping[str, str]:
        """The map of instances without this one: a map that all workers share has it too.

        By default this daemon has the name of Synapse's main process, which is another one.
        """
        own = {self.instance_name} - {"master", "main"}
        return MappingProxyType({name: url for name, url in self.instance_map.items() if name not in own})

    def keyring(self) -> Keyring:
        """The secrets that peers may show to this daemon."""
        return Keyring(self.secret, self.keys)

    def credentials(self) -> Credentials:
        """What this daemon shows to other daemons."""
        if not (self.ca_file or self.certificate_file):
            return Credentials(self.secret)
        from synrepl.transports.tls import TlsFiles

        files = TlsFiles(
            ca_file=self.ca_file, cert_file=self.certificate_file, key_file=self.private_key_file
        )
        return Credentials(self.secret, files)

    @property
    def database_path(self) -> Path:
        """Where the SQLite file is; what files beside the log are named after, wherever that is."""
        is_sqlite = self.database.startswith("sqlite:")
        return Path(self.database.removeprefix("sqlite:")) if is_sqlite else Path("synrepl")

    @property
    def files_path(self) -> Path:
        """The directory for files by checksum."""
        path = self.database_path
        return self.files if self.files is not None else path.with_name(f"{path.name}.files")


def settings() -> list[Setting]:
    """Every setting, in the order of the manual."""
    return [
        Setting(name=field.name, **field.metadata["setting"])
        for field in dataclasses.fields(Settings)
        if "setting" in field.metadata
    ]


def table_for_the_manual() -> str:
    """The table of settings, in Markdown."""
    lines = ["| flag | key in the file | default | |", "|---|---|---|---|"]
    for one in settings():
        flag = {"file": "", "switch": f"`--{one.flag}`"}.get(one.kind, f"`--{one.flag} {one.metavar}`")
        lines.append(f"| {flag} | `{one.name}` | `{one.default_text}` | {one.help} |")
    return "\n".join(lines) + "\n"
