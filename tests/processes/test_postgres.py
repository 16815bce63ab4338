"""The daemon over a real PostgreSQL, which goes away under it."""

from pathlib import Path

import pytest

from synrepl.streams.digest import EMPTY, verify
from tests.processes.loading import Asker, Refused, changelog, made_rows
from tests.processes.test_storage_trouble import cannot_start
from tests.servers.postgres import PostgresServer
from tests.service.processes import TWISTD, Daemon


def test_a_daemon_outlives_its_database(tmp_path: Path) -> None:
    """It refuses while there is none, and goes on where it stood, without anybody's help."""
    with PostgresServer() as server:
        options = ("--database", server.new_database())
        with Daemon(tmp_path, options=options) as daemon, Asker(daemon.url) as asker:

            def post(number: int) -> int:
                answer = asker.post("to_device", [made_rows("to_device", number)], key=str(number))
                serial: int = answer["first_serial"]
                return serial

            first = daemon.pid
            assert post(1) == 1
            told = cannot_start(tmp_path, *TWISTD, *options)
            server.kill()
            with pytest.raises(Refused) as refused:
                post(2)
            server.start()
            assert [post(2), post(3), post(1)] == [2, 3, 1]
            facts = list(changelog(daemon.url))
            daemon.terminate()
        with Daemon(tmp_path, options=options) as daemon:
            assert list(changelog(daemon.url)) == facts

    assert f"process {first} on " in told
    assert refused.value.status == 503
    assert [fact.serial for fact in facts] == [1, 2, 3]
    assert verify(facts, EMPTY) is None
    assert list(tmp_path.glob("*.db*")) == []
