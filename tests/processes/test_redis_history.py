"""A writer that comes back without what it had told."""

from pathlib import Path

from tests.processes.channel import eventually, kept, on_redis, redis_of, status, wait_until_writing
from tests.processes.deployment import rows_of
from tests.processes.loading import Asker
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon


def post(daemon: Daemon, *numbers: int) -> None:
    """One fact for each of these."""
    with Asker(daemon.url) as asker:
        asker.post("receipts", [rows_of("receipts", number) for number in numbers])


def test_a_writer_that_lost_its_log_begins_a_new_epoch(tmp_path: Path) -> None:
    """Its new facts have tokens that were used before: they are not taken for what is known."""
    with RedisServer() as redis, on_redis(tmp_path, redis, "watcher") as watcher:
        eventually(lambda: redis_of(watcher.url)["subscribed"], "a daemon that hears")
        with on_redis(tmp_path, redis, "alpha", writes="receipts") as alpha:
            wait_until_writing(alpha)
            post(alpha, 1, 2, 3, 4)
            eventually(lambda: len(kept(watcher.url)) == 4, "what it told")
            old = kept(watcher.url)
            alpha.terminate()
        for file in (tmp_path / "alpha").glob("synrepl.db*"):
            file.unlink()
        with on_redis(tmp_path, redis, "alpha", writes="receipts") as alpha:
            wait_until_writing(alpha)
            post(alpha, 11, 12)
            eventually(lambda: len(kept(watcher.url)) == 6, "what it told anew")

            assert [*old, *kept(alpha.url)] == kept(watcher.url)
            assert 2 == status(watcher.url)["epoch"]
            assert 1 == status(alpha.url)["epoch"]
