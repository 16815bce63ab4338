"""Validation of settings that depend on each other. A listener for other machines needs a guard."""

from ipaddress import ip_address
from typing import TYPE_CHECKING

from synrepl.errors import ConfigError
from synrepl.replication.strategies import serving
from synrepl.transports.endpoints import LOCAL_TYPES, split

if TYPE_CHECKING:
    from synrepl.config.settings import Settings

__all__ = ["is_loopback", "validate"]


def validate(built: "Settings") -> None:
    """Raise `ConfigError` if the settings contradict each other."""
    _check_open(built)
    _check_name(built)
    if built.upstream is None and (built.upstream_streams or built.upstream_writers):
        raise ConfigError("--upstream-streams and --upstream-writers need --upstream: set it, or remove them")
    if any(one.for_catch_up for one in built.table_streams) and not (built.redis or built.follow):
        raise ConfigError(
            "table_streams: a stream with `catch_up: true` receives its facts from other writers: set"
            " --redis or --follow"
        )
    if (built.certificate_file is None) != (built.private_key_file is None):
        raise ConfigError("--certificate-file and --private-key-file go together: set both")
    if built.timeout_seconds <= built.ping_seconds:
        raise ConfigError(
            f"--timeout-seconds must be longer than --ping-seconds ({built.ping_seconds:g}),"
            " or peers time out"
        )


def is_loopback(description: str) -> bool:
    """Whether only this machine can connect to such an endpoint.

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
    if interface == "localhost":
        return True
    try:
        return ip_address(interface).is_loopback
    except ValueError:
        return False


def requires_certificates(description: str) -> bool:
    """Whether clients of such an endpoint must show a certificate."""
    kind, _, named = split(description)
    return kind == "tls" and "trustRoots" in named


def _check_open(built: "Settings") -> None:
    """Refuse a listener that other machines can reach without a secret, a key or a certificate.

    The setting `insecure` allows it.
    """
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
    if not (built.secret or built.keys or is_loopback(built.http) or requires_certificates(built.http)):
        raise ConfigError(
            f"--http {built.http} is reachable from other machines without a secret:"
            f" use {_fix(built.http)}, set a --secret-file, or set --insecure"
        )


def _check_name(built: "Settings") -> None:
    """Refuse to publish on Redis under the name of another writer: readers would drop facts of both."""
    if not built.redis_writes:
        return
    if built.redis is None:
        raise ConfigError("--redis-writes needs --redis: set the Redis to publish to")
    other_writers = {"master", "main", *built.instance_map}
    for name in {one.writer or built.instance_name for one in built.redis_writes}:
        if name in other_writers:
            raise ConfigError(
                f"--redis-writes: {name} is the name of another writer on Redis; set an --instance-name that"
                " no other process has, such as synrepl1"
            )


def _fix(description: str) -> str:
    kind, words, named = split(description)
    if kind in ("tcp", "ssl", "tls") and words and "interface" not in named:
        return f"{description}:interface=127.0.0.1"
    return "an endpoint on 127.0.0.1"
