"""The load on a log in PostgreSQL, whose data directory is on the disk that loses its power."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from synrepl.storage.engine import SQLEngine
from synrepl.storage.postgres import PostgresDatabase
from tests.crash.scenarios import Acknowledge, Acknowledged
from tests.power.loads import LogLoad
from tests.servers.postgres import PostgresServer

__all__ = ["PostgresLoad"]


class PostgresLoad(LogLoad):
    """As `LogLoad`, by a server of its own."""

    STEPS = 150

    def __init__(self, position: str) -> None:
        super().__init__(position)
        self._url = ""

    def engine(self) -> SQLEngine:
        return SQLEngine(PostgresDatabase(self._url))

    def prepare(self) -> None:
        with self._server():
            pass  # initdb

    def run(self, acknowledge: Acknowledge) -> None:
        with self._server():
            super().run(acknowledge)

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        # A machine that starts has none of the processes that it names.
        (self.position / "data" / "postmaster.pid").unlink(missing_ok=True)
        with self._server():
            super().check(acknowledged)

    @contextmanager
    def _server(self) -> Iterator[None]:
        server = PostgresServer(self.position / "data", durable=True)
        if server._account is not None:
            for path in (self.position, *self.position.rglob("*")):
                os.chown(path, *server._account)
        try:
            server.start()
            self._url = server.url
            yield
        finally:
            server.remove()
