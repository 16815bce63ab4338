"""The HTTP site of a daemon."""

from synrepl.ports.access import Keyring
from synrepl.transports.http.authorization import AccessCheck
from synrepl.transports.http.request import ApiSite
from synrepl.transports.http.services import Services

__all__ = ["make_site"]


def make_site(services: Services, *, keys: Keyring | None = None) -> ApiSite:
    """Make a site that serves these services.

    With `keys`, ``/v1``, ``/_synapse`` and ``/status`` need one of them as ``Authorization: Bearer``. Without
    keys, clients may use the host names of the settings only.
    """
    # Klein imports the reactor, which the caller must have installed before.
    from synrepl.transports.http.api import Api

    settings = services.settings
    guard = AccessCheck(keys if keys is not None else Keyring(), settings.hosts)
    return ApiSite(
        Api(services, guard).app.resource(),
        clock=services.clock,
        guard=guard,
        max_body=settings.max_body_bytes,
        files=services.files,
        max_file=settings.max_file_bytes,
    )
