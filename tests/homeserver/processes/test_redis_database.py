"""What was missed on Redis, read from the homeserver's own table."""

import json
import sqlite3
from pathlib import Path

from tests.processes.channel import Speaker, eventually, kept, metric, on_redis, redis_of, status
from tests.servers.redis import RedisServer

CACHES = {
    "stream": "caches",
    "table": "cache_invalidation_stream_by_instance",
    "row": ["cache_func", {"json": "keys"}, "invalidation_ts"],
    "catch_up": True,
}


def test_a_gap_of_a_worker_without_an_address_is_read_from_its_table(tmp_path: Path) -> None:
    """As Synapse's own processes do; others' rows of the same table are not taken for its."""
    database = sqlite3.connect(tmp_path / "homeserver.db")
    with database:
        database.execute(
            "CREATE TABLE cache_invalidation_stream_by_instance (stream_id INTEGER, instance_name,"
            " cache_func, keys, invalidation_ts)"
        )
        database.executemany(
            "INSERT INTO cache_invalidation_stream_by_instance VALUES (?, ?, ?, ?, 1)",
            [
                *((token, "w1" if token % 2 else "w2", f"get_{token}", '["a"]') for token in range(4, 2_400)),
            ],
        )
    database.close()
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"table_streams": [CACHES], "tables_database": "sqlite:../homeserver.db"}))
    with (
        RedisServer() as redis,
        on_redis(tmp_path, redis, "watcher", "--config", str(config)) as daemon,
        Speaker(redis) as speaker,
    ):
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        speaker.say(
            "POSITION caches w1 5 5", 'RDATA caches w1 7 ["get_7",["a"],1]', "POSITION caches w1 2399 2399"
        )
        eventually(lambda: len(kept(daemon.url)) == 1_198 - 1, "all of the table")

        facts = kept(daemon.url)
        assert {"w1"} == {fact.writer for fact in facts}
        assert list(range(7, 2_400, 2)) == [fact.token for fact in facts]
        assert 1 == metric(daemon.url, "synrepl_gaps_detected_total")
        assert 1 == metric(daemon.url, "synrepl_gaps_repaired_total")

        # Without such a row in the table, and without an address, there is nobody to ask: that is told, and
        # the stream goes on.
        speaker.say("POSITION receipts w1 5 5", "POSITION receipts w1 9 9")
        speaker.say('RDATA receipts w1 10 ["!r","m.read","@u","$e",null,{}]')
        eventually(lambda: len(kept(daemon.url)) == 1_198, "what came after what is lost")
        (lost,) = eventually(lambda: redis_of(daemon.url)["lost"], "what is lost")
        assert ("receipts", "w1", 5, 9) == (lost["stream"], lost["writer"], lost["have"], lost["want"])
        assert "behind" == status(daemon.url)["state"]
        assert 1 == metric(daemon.url, "synrepl_gaps_lost_total")
