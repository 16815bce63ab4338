"""PgBouncer before the database of a log: in each of its modes, as its package installs it."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from synrepl.errors import StorageError
from synrepl.storage.postgres import PostgresDatabase
from tests.postgres import shared_server
from tests.processes.channel import eventually
from tests.servers.ports import free_port

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not there; install its package")


@contextmanager
def pooled(mode: str) -> Iterator[str]:
    """The URL of a new database through the pooler, which runs as the server does: not as root."""
    server = shared_server()
    parameters = conninfo_to_dict(server.new_database())
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="synrepl-pooler-", dir="/tmp") as folder:
        users, settings = Path(folder, "users"), Path(folder, "pgbouncer.ini")
        users.write_text(f'"{parameters["user"]}" ""\n')
        settings.write_text(
            f"[databases]\n* = host={parameters['host']} port={parameters.get('port', 5432)}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = {mode}\n"
        )
        Path(folder).chmod(0o755)
        process = subprocess.Popen([str(PGBOUNCER), "-q", str(settings)], **server.as_account())
        url = f"postgresql://{parameters['user']}@127.0.0.1:{port}/{parameters['dbname']}"

        def answers() -> bool:
            with suppress(psycopg.Error), psycopg.connect(url, connect_timeout=5):
                return True
            return False

        try:
            eventually(answers, "the pooler answers")
            yield url
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.story
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_shared_sessions_are_refused(mode: str) -> None:
    """Two daemons got the lock of one log."""
    with pooled(mode) as url, pytest.raises(StorageError, match="gives one session to several") as caught:
        PostgresDatabase(url).acquire()

    assert "pool_mode = session" in caught.value.hint


@pytest.mark.story
def test_sessions_of_ones_own_are_locks() -> None:
    """One log, one daemon; when it has ended the next gets it."""
    with pooled("session") as url:
        first, second = PostgresDatabase(url), PostgresDatabase(url)
        first.acquire()
        with pytest.raises(StorageError, match="uses the log"):
            second.acquire()
        first.release()
        second.acquire()
        second.release()
