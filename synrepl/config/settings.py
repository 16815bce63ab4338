"""All settings of a daemon, and their validation.

A listener for other machines must authenticate its clients, and no key may be read on the way to it or from
this daemon, unless `insecure` is set.
"""

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from synrepl.base.access import Key, Keyring
from synrepl.base.settings import Setting, path, setting, size, switch
from synrepl.config.config_files import read_file, read_keys, read_secret
from synrepl.config.plain_passwords import plain_passwords
from synrepl.errors import ConfigError, suggest
from synrepl.ingest.settings import IngestSettings
from synrepl.key_rules import is_loopback_host
from synrepl.missing_rooms import why_missing
from synrepl.replication.settings import RetentionSettings
from synrepl.replication.strategies import serving
from synrepl.rooms import rooms
from synrepl.streams.declaration import Declaration
from synrepl.streams.declared import parse_declarations
from synrepl.transports.endpoints import LOCAL_TYPES, split
from synrepl.transports.settings import ApiSettings, endpoint, endpoints

if TYPE_CHECKING:
    from synrepl.transports.credentials import Credentials

GROUPS: Final[Mapping[str, str]] = {
    "Identity": "server_name instance_name",
    "Listeners and access": "listen http insecure secret_file keys_file ca_file"
    " certificate_file private_key_file allowed_hosts advertise",
    "Log and files": "database retain_seconds",
    "Sources of facts": "redis redis_writes follow instance_map streams no_federation",
    "Connections": "dialect ping_seconds timeout_seconds request_seconds reader_bytes max_body_bytes",
}
"""The headings of the manual in its order, each with the names of its settings."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(
    ApiSettings,
    IngestSettings,
    RetentionSettings,
):
    """The settings of a daemon, with those of its parts, inherited from the settings classes of the parts."""

    listen: tuple[str, ...] = setting(
        ("tcp:9092:interface=127.0.0.1",),
        "The replication listener for followers, as a Twisted server endpoint string. May be repeated.",
        parse=endpoints,
        metavar="ENDPOINT",
        kind="list",
    )
    http: str = setting(
        "tcp:9093:interface=127.0.0.1",
        "The listener of the HTTP API, the status page and the metrics, as a Twisted server endpoint string.",
        parse=endpoint,
        metavar="ENDPOINT",
    )
    streams: tuple[Declaration, ...] = setting(
        (),
        "Streams of one's own, by name, each with `key`, `kind` (kept or ephemeral), `columns`"
        " (none: untyped) and `writers`. A primary declares them when it starts or is promoted.",
        parse=parse_declarations,
        metavar="TABLE",
        kind="file",
        example="{packages: {key: name, columns: {name: str, version: str}, writers: [index]}}",
    )
    no_federation: bool = setting(
        False,
        "Do not serve the stream federation: Synapse has none while its main process sends to other servers.",
        parse=switch,
    )
    secret_file: Path | None = setting(
        None,
        "A file with the shared secret: required of clients, and shown to the daemons in --upstream, where"
        " nobody else can read it (--insecure).",
        parse=path,
        example="/etc/synrepl/secret",
    )
    keys_file: Path | None = setting(
        None,
        "A file with a line `name secret [rights [streams [instances]]]` for each peer with a key of its own."
        " Other peers"
        " use the shared secret. Rights: read, write, replicate, administer.",
        parse=path,
        example="/etc/synrepl/keys",
    )
    ca_file: Path | None = setting(
        None,
        "A PEM file with the CA certificates to verify https:// and tls: servers with. None: those of the"
        " system.",
        parse=path,
        example="/etc/synrepl/ca.pem",
    )
    certificate_file: Path | None = setting(
        None,
        "A PEM file with the client certificate for https:// and tls: servers that require one.",
        parse=path,
        example="/etc/synrepl/cert.pem",
    )
    private_key_file: Path | None = setting(
        None,
        "A PEM file with the private key of `certificate_file`.",
        parse=path,
        example="/etc/synrepl/key.pem",
    )
    insecure: bool = setting(
        False,
        "Allow plain connections beyond loopback: listeners without TLS, even if no key is configured, and"
        " keys that this daemon sends in the clear. Keys that are configured are asked for all the same.",
        parse=switch,
    )
    reader_bytes: int = setting(
        "8MiB",
        "The buffer of the newest facts that followers share in memory."
        " Followers further behind read from the log.",
        parse=size,
    )
    secret: str | None = dataclasses.field(default=None, repr=False)
    keys: tuple[Key, ...] = dataclasses.field(default=(), repr=False)
    warnings: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    """What an operator may know, and need not change."""

    @classmethod
    def build(
        cls, flags: Mapping[str, Any] = MappingProxyType({}), *, file: Path | None = None
    ) -> "Settings":
        """Build checked settings from the defaults, the YAML `file` and `flags`; a later one overrides.

        `flags` maps field names to values, as text or as in the file. Raises `ConfigError`::

            settings = Settings.build({"server_name": "example.org", "reader_bytes": "2MiB"})
        """
        given = {**(read_file(file, [one.name for one in settings()]) if file is not None else {}), **flags}
        unparsed = dict(given)
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
                # YAML numbers are unbounded: their conversion to a float or a string may fail.
                raise ConfigError(f"{where} cannot be used: {' '.join(str(error).split())}") from error
        for unknown in unparsed:
            missing = why_missing("settings", unknown)
            hint = f"; {missing}" if missing else suggest(unknown, [one.name for one in settings()])
            raise ConfigError(f"there is no setting {unknown}{hint}")
        warnings: list[str] = []
        if parsed["secret_file"] is not None:
            parsed["secret"] = read_secret(parsed["secret_file"], warnings)
        if parsed["keys_file"] is not None:
            parsed["keys"] = read_keys(parsed["keys_file"], warnings)
        # A shared instance map contains this daemon too. `master` and `main` stay, even if this daemon has
        # the default name: they name Synapse's main process (docs/reference/peers.md#http-catchup).
        instance = parsed["instance_name"]
        own = {instance} - {"master", "main"}
        others = {name: url for name, url in parsed["instance_map"].items() if name not in own}
        parsed["instance_map"] = MappingProxyType(others)
        built = settings_class()(**parsed, warnings=tuple(warnings), is_named="server_name" in given)
        notes = plain_passwords(
            redis=built.redis,
            texts={
                one.name: value for one in settings() if isinstance(value := getattr(built, one.name), str)
            },
            instance_map={} if built.secret is None else built.instance_map,
        )
        built = dataclasses.replace(built, notes=tuple(notes))
        validate(built)
        return built

    def keyring(self) -> Keyring:
        """Return the secrets and certificate names that this daemon accepts from peers."""
        return Keyring(self.secret, self.keys)

    def credentials(self) -> "Credentials":
        """Return the credentials with which this daemon authenticates to other daemons."""
        # Imported on use: it loads Twisted, which a command that only checks settings does not need.
        from synrepl.transports.credentials import Credentials

        files = None
        if self.ca_file or self.certificate_file:
            # Imported on use: it loads OpenSSL.
            from synrepl.transports.tls import TlsFiles

            files = TlsFiles(
                ca_file=self.ca_file, cert_file=self.certificate_file, key_file=self.private_key_file
            )
        return Credentials(self.secret, files, insecure=self.insecure)


@cache
def settings_class() -> type[Settings]:
    """Return the class of the settings of the core and of all installed rooms."""
    others = [one for room in rooms() if (one := room.settings_class()) is not None]
    made = type("Settings", (Settings, *others), {"__doc__": Settings.__doc__, "__module__": __name__})
    return dataclasses.dataclass(frozen=True, kw_only=True)(made)


def settings() -> list[Setting]:
    """Return every setting of the core and of all installed rooms, in the order of the manual."""
    declared = {field.name: field.metadata for field in dataclasses.fields(settings_class())}
    groups: dict[str, list[str]] = {heading: names.split() for heading, names in GROUPS.items()}
    for room in rooms():
        for heading, names in room.headings.items():
            groups.setdefault(heading, []).extend(names.split())
    return [
        Setting(name=name, group=group, **declared[name]["setting"])
        for group, names in groups.items()
        for name in names
    ]


def validate(built: Settings) -> None:
    """Raise `ConfigError` if settings contradict each other, or open an unauthenticated listener to other
    machines although `insecure` is not set."""
    for room in rooms():
        room.check_settings(built)
    _check_open(built)
    _check_private(built)
    _check_name(built)
    if (built.certificate_file is None) != (built.private_key_file is None):
        raise ConfigError("--certificate-file and --private-key-file go together: set both")
    if built.timeout_seconds <= built.ping_seconds:
        raise ConfigError(
            f"--timeout-seconds must be longer than --ping-seconds ({built.ping_seconds:g}),"
            f" not {built.timeout_seconds:g}: an idle connection would be closed before its first PING"
        )


def key_listeners(built: Settings) -> list[tuple[str, str]]:
    """Return the listeners whose clients show keys: the name of the setting, and the endpoint."""
    return [*(one for room in rooms() for one in room.listeners(built)), ("http", built.http)]


def is_loopback(description: str) -> bool:
    """Whether only this machine can connect to this server endpoint.

    An inherited socket (``systemd:``) counts as open, since its address is not known.
    """
    kind, words, named = split(description)
    if kind == "haproxy" and words:
        return is_loopback(description.split(":", 1)[1])
    if kind in LOCAL_TYPES:
        return True
    # The third positional argument of ssl, unlike that of tcp and tcp6, is not the interface.
    positional = words[1:2] if kind in ("tcp", "tcp6") else []
    interface = named.get("interface", positional[0] if positional else "").partition("%")[0]
    return is_loopback_host(interface)


def requires_certificates(description: str) -> bool:
    """Whether clients of this server endpoint must show a certificate."""
    kind, _, named = split(description)
    return kind == "tls" and "trustRoots" in named


def is_private_listener(description: str) -> bool:
    """Whether nobody else can read a connection to this server endpoint."""
    kind, _, _ = split(description)
    if kind == "haproxy":
        return is_private_listener(description.partition(":")[2])
    return kind in ("tls", "ssl") or is_loopback(description)


def _check_private(built: Settings) -> None:
    """Refuse listeners that ask for keys where others could read them."""
    if built.insecure:
        return
    is_native = built.dialect is not None and serving(built.dialect).is_replica
    asks = built.secret is not None or built.keys
    for_keys = key_listeners(built)
    for_keys += [("listen", one) for one in built.listen if is_native]
    for name, description in for_keys if asks else ():
        if not is_private_listener(description):
            raise ConfigError(
                f"--{name} {description} asks for keys, and others could read them on the way: use tls:, a"
                " UNIX socket, or loopback behind a proxy that ends TLS; --insecure leaves the keys readable"
            )


def _check_open(built: Settings) -> None:
    if built.insecure:
        return
    for_replicas = built.dialect is not None and serving(built.dialect).is_replica
    is_guarded = for_replicas and (built.secret is not None or built.keys)
    for description in built.listen:
        if not (is_loopback(description) or is_guarded or requires_certificates(description)):
            raise ConfigError(
                f"--listen {description} is reachable from other machines, and the line protocol has no"
                f" authentication: use {_fix(description)}, or set --insecure. To authenticate clients,"
                " require certificates (tls: with trustRoots=). For replicas, --secret-file with"
                " --dialect native is enough"
            )
    for name, description in key_listeners(built):
        if not (built.secret or built.keys or is_loopback(description) or requires_certificates(description)):
            raise ConfigError(
                f"--{name} {description} is reachable from other machines without a secret:"
                f" use {_fix(description)}, or set --secret-file, --keys-file or --insecure"
            )


def _check_name(built: Settings) -> None:
    """Refuse to publish on the channel under the name of another writer: readers would drop facts of both."""
    if not built.channel_writes:
        return
    if not built.has_channel:
        raise ConfigError("--redis-writes needs --redis or --resp: set the channel to publish on")
    other_writers = {"master", "main", *built.instance_map}
    for one in built.channel_writes:
        if (name := one.writer or built.instance_name) in other_writers:
            change = f"change the writer of {one.stream}" if one.writer else "set an --instance-name"
            raise ConfigError(
                f"--redis-writes: {name} is the name of another writer on the channel; {change} that no other"
                " process has, such as synrepl1"
            )


def _fix(description: str) -> str:
    kind, words, named = split(description)
    if kind in ("tcp", "ssl", "tls") and words and "interface" not in named:
        return f"{description}:interface=127.0.0.1"
    return "an endpoint on 127.0.0.1"
