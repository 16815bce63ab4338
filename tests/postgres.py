"""The PostgreSQL of the tests: one server a process, started when the first test asks for it."""

from functools import cache

import psycopg

from synrepl.streams.facts import Fact
from tests.servers.postgres import PostgresServer

__all__ = ["kept_facts", "new_database", "shared_server"]


@cache
def shared_server() -> PostgresServer:
    """The server, running; it ends with the process. Tests that stop a server take one of their own."""
    server = PostgresServer()
    server.start()
    return server


def new_database() -> str:
    """The URL of an empty database of one's own."""
    return shared_server().new_database()


def kept_facts(url: str) -> list[Fact]:
    """All facts of the log in this database, whoever has it open."""
    with psycopg.connect(url) as database:
        found = database.execute(
            "SELECT serial, epoch, stream, writer, prev_token, token, rows, committed_at_ms, digest"
            " FROM synrepl.facts ORDER BY serial"
        ).fetchall()
    return [Fact(*row) for row in found]
