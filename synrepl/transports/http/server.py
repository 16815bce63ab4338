"""The HTTP site of a daemon."""

from collections.abc import Collection
from typing import Final

from synrepl.ports.access import Keyring
from synrepl.transports.http.authorization import AccessCheck
from synrepl.transports.http.request import ApiSite
from synrepl.transports.http.services import Services

__all__ = ["MAX_BODY", "MAX_FILE", "make_site"]

MAX_BODY: Final = 64 * 1024 * 1024
MAX_FILE: Final = 16 * 1024 * 1024 * 1024


def make_site(
    services: Services,
    *,
    keys: Keyring | None = None,
    hosts: Collection[str] = (),
    max_body: int = MAX_BODY,
    max_file: int = MAX_FILE,
) -> ApiSite:
    """Make a site that serves these services.

    With `keys`, ``/v1``, ``/_synapse`` and ``/status`` need one of them as ``Authorization: Bearer``. Without
    keys, `hosts` are the names with dots under which clients may reach the daemon. `max_body` and `max_file`
    are limits in bytes.
    """
    # Klein imports the reactor, which the caller must have installed before.
    from synrepl.transports.http.api import Api

    own_name = services.server_name.rpartition(":")[0] or services.server_name
    guard = AccessCheck(keys if keys is not None else Keyring(), [own_name, *hosts])
    return ApiSite(
        Api(services, guard).app.resource(),
        clock=services.clock,
        guard=guard,
        max_body=max_body,
        files=services.files,
        max_file=max_file,
    )
