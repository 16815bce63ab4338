"""An idle daemon with default settings has in memory what it uses, and nothing of what it might."""

import pytest

from tests.idle import imported_by_an_idle_daemon, unwanted

UNUSED = {
    "no request of another process is to be made": (
        "treq",
        "hyperlink",
        "twisted.web.client",
        "synrepl.http_client",
        "synrepl.transports.http.http_client",
    ),
    "nobody has asked for metrics": ("prometheus_client", "http.server", "wsgiref"),
    "nobody has connected to its port for followers": (
        "twisted.protocols.basic",
        "synrepl.transports.tcp",
        "synrepl.transports.connection",
    ),
    "nobody has connected to its HTTP port": (
        "twisted.web",
        "synrepl.transports.http.api",
        "synrepl.transports.http.server",
        "synrepl.transports.http.handlers",
    ),
    "it has no replica and no upstream": (
        "synrepl.replicas.wire",
        "synrepl.replicas.relay.relay",
        "synrepl.replicas.relay.relay_states",
        "synrepl.replicas.replica.replica",
        "synrepl.replicas.replica.upstreams",
    ),
    "nobody promotes it": ("synrepl.replicas.roles.promise_check",),
    "it has no file of settings": ("yaml",),
    "it is no command": ("click", "synrepl.cli"),
    "its log is a file": ("psycopg", "synrepl.storage.postgres", "synrepl.storage.postgres_connection"),
    "it follows nobody": (
        "txredisapi",
        "hiredis",
        "synrepl.transports.redis.link",
        "synrepl.replication.follower.follower",
        "synrepl.replication.membership",
        "synrepl.caches",
    ),
    "it analyzes nothing": ("pyarrow", "pyspark"),
}
"""Modules and packages, by the reason for which they are not there."""

UNUSED_BY_HTTP = {
    "its HTTP server has no sessions and no pages of Twisted": (
        "twisted.web.server",
        "twisted.web.resource",
        "twisted.web.template",
        "twisted.spread",
    ),
    "nobody has asked for metrics": UNUSED["nobody has asked for metrics"],
    "nobody has asked for the status page": ("jinja2", "synrepl.transports.http.status_page"),
    "no room has got a request": ("synrepl.files.handlers", "synrepl.replicas.http.admin_handlers"),
    "no request of another process is to be made": UNUSED["no request of another process is to be made"],
}
"""Those that a daemon does not need for a request for its health."""


def test_the_daemon_is_there() -> None:
    """The lists below would be empty without it, too."""
    assert "synrepl.daemon.listeners" in imported_by_an_idle_daemon()


@pytest.mark.parametrize("why", UNUSED)
def test_it_has_not_imported_what_it_does_not_use(why: str) -> None:
    """Each module that is there names its importer: the line to move to where it is used."""
    assert unwanted(UNUSED[why]) == {}


@pytest.mark.parametrize("why", UNUSED_BY_HTTP)
def test_a_request_imports_what_it_needs(why: str) -> None:
    """A health check comes every few seconds to most daemons, and must not cost what other requests need."""
    assert "synrepl.transports.http.status_routes" in imported_by_an_idle_daemon(is_asked=True)
    assert unwanted(UNUSED_BY_HTTP[why], is_asked=True) == {}
