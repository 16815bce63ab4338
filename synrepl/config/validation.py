"""What settings must not be together. Closed by default: what can be reached from elsewhere needs a guard."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from synrepl.errors import ConfigError
from synrepl.replication.serve_strategy import serving
from synrepl.transports.endpoints import split

if TYPE_CHECKING:
    from synrepl.wire.dialect import Dialect

__all__ = ["ValidSettings", "check", "is_loopback"]


class ValidSettings(Protocol):
    """The settings that must fit together; `settings.Settings` has them."""

    @property
    def certificate_file(self) -> Path | None: ...
    @property
    def private_key_file(self) -> Path | None: ...
    @property
    def dialect(self) -> "Dialect | None": ...
    @property
    def follow(self) -> Sequence[str]: ...
    @property
    def http(self) -> str: ...
    @property
    def insecure(self) -> bool: ...
    @property
    def instance_map(self) -> Mapping[str, str]: ...
    @property
    def instance_name(self) -> str: ...
    @property
    def listen(self) -> Sequence[str]: ...
    @property
    def ping_seconds(self) -> float: ...
    @property
    def redis(self) -> object: ...
    @property
    def redis_writes(self) -> Sequence[Any]: ...
    @property
    def keys(self) -> Sequence[Any]: ...
    @property
    def secret(self) -> str | None: ...
    @property
    def table_streams(self) -> Sequence[Any]: ...
    @property
    def timeout_seconds(self) -> float: ...
    @property
    def upstream(self) -> str | None: ...
    @property
    def upstream_streams(self) -> Sequence[str] | None: ...
    @property
    def upstream_writers(self) -> Sequence[str] | None: ...


def check(built: ValidSettings) -> None:
    """Raises `ConfigError`."""
    _check_open(built)
    _check_name(built)
    _check_upstream(built)
    if any(one.for_catch_up for one in built.table_streams) and not (built.redis or built.follow):
        raise ConfigError(
            "table_streams: with `catch_up: true` the facts of a stream are heard from others: say from"
            " whom, by --redis or --follow"
        )
    if (built.certificate_file is None) != (built.private_key_file is None):
        raise ConfigError("--certificate-file and --private-key-file go together: name both")
    if built.timeout_seconds <= built.ping_seconds:
        raise ConfigError(
            f"--timeout-seconds is longer than --ping-seconds ({built.ping_seconds:g}) or peers time out"
        )


def is_loopback(description: str) -> bool:
    """Whether only this machine can connect to such an endpoint.

    Sockets that someone else opened (``systemd:``) count as open, since nothing here says how far they reach.
    """
    kind, words, named = split(description)
    if kind == "haproxy" and words:
        return is_loopback(description.split(":", 1)[1])
    if kind == "unix":
        return True
    # The third positional argument of ssl, unlike that of tcp and tcp6, is not the interface.
    places = words[1:2] if kind in ("tcp", "tcp6") else []
    interface = named.get("interface", places[0] if places else "").partition("%")[0]
    if interface == "localhost":
        return True
    try:
        return ip_address(interface).is_loopback
    except ValueError:
        return False


def wants_certificates(description: str) -> bool:
    """Whether clients of such an endpoint must show a certificate."""
    kind, _, named = split(description)
    return kind == "tls" and "trustRoots" in named


def _check_open(built: ValidSettings) -> None:
    """Closed by default: what listens beyond this machine needs a guard, or a word that it has none."""
    if built.insecure:
        return
    for_replicas = built.dialect is not None and serving(built.dialect).is_replica
    is_guarded = for_replicas and (built.secret is not None or built.keys)
    for description in built.listen:
        if not (is_loopback(description) or is_guarded or wants_certificates(description)):
            raise ConfigError(
                f"--listen {description} can be reached from other machines, and the line"
                f" protocol has no guard: {_fix(description)}, or say --insecure; clients can prove"
                " themselves by certificates (tls: with trustRoots=), replicas also by a --secret-file with"
                " --dialect native"
            )
    if not (built.secret or built.keys or is_loopback(built.http) or wants_certificates(built.http)):
        raise ConfigError(
            f"--http {built.http} can be reached from other machines without a secret:"
            f" {_fix(built.http)}, name a --secret-file, or say --insecure"
        )


def _check_upstream(built: ValidSettings) -> None:
    """What only a replica has."""
    if built.upstream is None and (built.upstream_streams or built.upstream_writers):
        raise ConfigError("--upstream-streams and --upstream-writers need --upstream: say of whom")


def _check_name(built: ValidSettings) -> None:
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
    kind, words, named = split(description)
    if kind in ("tcp", "ssl", "tls") and words and "interface" not in named:
        return f"say {description}:interface=127.0.0.1"
    return "listen on 127.0.0.1"
