"""A transaction that a writer leaves open holds back that writer's rows alone."""

import json
import time
from pathlib import Path

import psycopg

from synrepl.storage.id_tables.id_database import IdDatabase
from tests.homeserver.processes.receipts_writer import STREAM
from tests.processes.channel import Listener, eventually, on_redis, status
from tests.processes.loading import Recorder, report
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

RECEIPTS = {
    "stream": "receipts",
    "table": "receipts_linearized",
    "row": ["room_id", {"value": "m.read"}, "user_id", "event_id", None, {"json": "data"}],
    "sequence": STREAM.sequence,
    "writers": ["A", "B"],
    "start": "earliest",
}


class Writer:
    """A homeserver's process: it reserves an id, writes a row under it, and stores its position then."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.token = 0
        self._connection = psycopg.connect(url)
        self._database = IdDatabase(STREAM, "postgresql")

    def begin(self) -> None:
        """Insert a row in a transaction, and leave that open."""
        cursor = self._connection.cursor()
        (self.token,), _ = self._database.allocate(cursor, 1, 0)
        row = (self.token, self.name, f"@~{self.token}~:a")
        cursor.execute("INSERT INTO receipts_linearized VALUES (%s, %s, '!r:a', %s, '$e:a', '{}')", row)

    def commit(self) -> float:
        """Commit the row, then the position, as Synapse does; return when."""
        self._connection.commit()
        self._database.save_position(self._connection.cursor(), self.name, self.token)
        self._connection.commit()
        return time.monotonic()

    def close(self) -> None:
        self._connection.close()


def test_rows_of_the_others_arrive_within_a_second(tmp_path: Path) -> None:
    """At a follower of 1.66 and on Redis; what commits at last arrives too. Nobody notifies the daemon."""
    with PostgresServer() as server, RedisServer() as redis:
        url = server.new_database()
        with psycopg.connect(url) as database:
            cursor = database.cursor()
            IdDatabase(STREAM, "postgresql").create(cursor)
            cursor.execute(
                "CREATE TABLE receipts_linearized (stream_id BIGINT NOT NULL, instance_name TEXT,"
                " room_id TEXT, user_id TEXT, event_id TEXT, data TEXT)"
            )
        writes = [{"stream": "receipts", "writer": name} for name in "AB"]
        config = tmp_path / "config.yaml"
        config.write_text(
            json.dumps({"table_streams": [RECEIPTS], "tables_database": url, "redis_writes": writes})
        )
        a, b = Writer(url, "A"), Writer(url, "B")
        for writer in (a, b):
            writer.begin()
            writer.commit()
        with on_redis(tmp_path, redis, "daemon", "--config", str(config)) as daemon, Listener(redis) as heard:
            tail = Recorder(
                *("-m", "synrepl", "tail", daemon.follow, "--http", daemon.url, "--dialect", "1.66"),
                *("--from", "earliest", "--stream", "receipts"),
                cwd=tmp_path,
            )
            try:
                tail.wait_until(lambda: len(tail.facts) == 2, "what was there before")
                a.begin()
                took = [_arrival(b, tail, heard) for _ in range(5)]
                (table,) = status(daemon.url)["tables"]
                told = [fact.token for fact in tail.facts if fact.writer == "A"]
                a.commit()
                eventually(lambda: ("A", a.token) in _heard(heard), "what was held up, on Redis")
                tail.wait_until(lambda: len(tail.facts) == 8, "what was held up")
            finally:
                tail.kill()
                a.close()
                b.close()
        facts = [(fact.writer, fact.token) for fact in tail.facts]

    report(f"rows of B arrive while A is open: after {max(took):.2f} s at most")
    assert table["held_by"] == ["A"]
    assert a.token not in told
    assert len(set(facts)) == len(facts) == 8
    for name in "AB":
        tokens = [token for writer, token in facts if writer == name]
        assert tokens == sorted(tokens)
    assert max(_heard(heard)) == ("B", b.token)


def _arrival(writer: Writer, tail: Recorder, heard: Listener) -> float:
    """Seconds from the commit of a row until a follower and Redis have it."""
    writer.begin()
    at = writer.commit()
    tail.wait_until(lambda: (writer.name, writer.token) in [(f.writer, f.token) for f in tail.facts], "a row")
    eventually(lambda: (writer.name, writer.token) in _heard(heard), "a row on Redis")
    return time.monotonic() - at


def _heard(heard: Listener) -> list[tuple[str, int]]:
    """The writers and tokens of all rows on Redis."""
    return [
        (words[2], int(words[3]))
        for words in map(str.split, heard.payloads("RDATA"))
        if words[1] == "receipts"
    ]
