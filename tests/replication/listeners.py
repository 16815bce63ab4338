"""Listeners of a test's own, at the daemon of a cluster."""

from typing import Any

from synrepl.testing import Cluster
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.session import AUTO

__all__ = ["listener"]


def listener(
    one: Cluster, address: str, made_by: type[PublisherFactory] = PublisherFactory, **options: Any
) -> PublisherFactory:
    """Listen at this address, with the options of the factory."""
    daemon = one.daemon
    given = {"server_name": "hs", "dialect": AUTO, **options}
    factory = made_by(daemon.publisher, clock=one.clock, metrics=daemon.metrics, **given)
    one.network.listen(address, factory)
    return factory
