"""The PostgreSQL of the tests: one server a process, started when the first test asks for it."""

from functools import cache

from synrepl.testing.postgres import PostgresServer

__all__ = ["new_database", "shared_server"]


@cache
def shared_server() -> PostgresServer:
    """The server, running; it ends with the process. Tests that stop a server take one of their own."""
    server = PostgresServer()
    server.start()
    return server


def new_database() -> str:
    """The URL of an empty database of one's own."""
    return shared_server().new_database()
