"""A pooler before PostgreSQL: it answers with a process of its own, and gives sessions to others."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from psycopg.conninfo import conninfo_to_dict
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from synrepl.errors import StorageError
from synrepl.storage.postgres import PostgresDatabase
from synrepl.storage.postgres_connection import POOLER, PostgresAddress
from tests.postgres import new_database


class Pooler:
    """Passes on what comes, with another process id in the server's greeting, as PgBouncer does."""

    def __init__(self, url: str) -> None:
        parameters = conninfo_to_dict(url)
        self._server = f"{parameters['host']}/.s.PGSQL.{parameters.get('port', 5432)}"
        self._socket = socket.create_server(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        options = "sslmode=disable&gssencmode=disable"
        self.url = f"postgresql://{parameters['user']}@127.0.0.1:{port}/{parameters['dbname']}?{options}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                for source, target, is_greeting in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=self._pass, args=(source, target, is_greeting), daemon=True
                    ).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, is_greeting: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                # BackendKeyData: its type, its length, the process id, the key.
                at = data.find(b"K\0\0\0\x0c") if is_greeting else -1
                if at >= 0:
                    data, is_greeting = data[: at + 5] + b"\0\0\0\7" + data[at + 9 :], False
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        """Take no more connections."""
        self._socket.close()


class SharingPooler(Pooler):
    """As PgBouncer in its mode transaction: what follows the greeting goes through one session."""

    READY = b"Z\0\0\0\5"

    def __init__(self, url: str) -> None:
        self._shared: socket.socket | None = None
        self._turn = threading.Lock()
        super().__init__(url)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        own = socket.socket(socket.AF_UNIX)
        own.connect(self._server)
        with closing(client), suppress(OSError):
            client.sendall(self._asked(own, client.recv(65536)))
            if self._shared is None:
                self._shared = own
            else:
                own.close()
            while data := client.recv(65536):
                if not data.startswith(b"X"):  # Terminate
                    with self._turn:
                        client.sendall(self._asked(self._shared, data))

    def _asked(self, server: socket.socket, data: bytes) -> bytes:
        """The server's answer; each request of psycopg comes in one piece."""
        server.sendall(data)
        answer = b""
        while not answer[:-1].endswith(self.READY):  # and whether in a transaction
            answer += server.recv(65536)
        at = answer.find(b"K\0\0\0\x0c")
        return answer if at < 0 else answer[: at + 5] + b"\0\0\0\7" + answer[at + 9 :]


@contextmanager
def warnings() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    found: list[str] = []

    @implementer(ILogObserver)
    def note(event: LogEvent) -> None:
        if event["log_namespace"] == "synrepl.storage" and "why" in event:
            found.append(event["why"])

    globalLogPublisher.addObserver(note)
    try:
        yield found
    finally:
        globalLogPublisher.removeObserver(note)


def test_a_pooler_is_told_once_and_nothing_is_prepared() -> None:
    """In transaction mode statements that were prepared in another session failed, now and then."""
    pooler = Pooler(new_database())
    with warnings() as told:
        address = PostgresAddress(pooler.url)
        for _ in range(2):
            with closing(address.connect("open")) as database:
                for _ in range(10):
                    database.execute("SELECT %s::int", (1,))
                found = database.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
                assert found == (0,)
    pooler.stop()

    assert [POOLER] == told


def test_a_server_itself_is_no_pooler() -> None:
    """The control: statements are prepared, and nothing is told."""
    with warnings() as told, closing(PostgresAddress(new_database()).connect("open")) as database:
        for _ in range(10):
            database.execute("SELECT %s::int", (1,))
        found = database.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()

    assert [] == told
    assert found is not None
    assert found[0]


def test_a_pooler_that_shares_sessions_is_refused() -> None:
    """Two daemons had the lock of one log: each got it in the session of the other."""
    pooler = SharingPooler(new_database())
    with warnings() as told, pytest.raises(StorageError, match="gives one session to several") as caught:
        PostgresDatabase(pooler.url).acquire()
    pooler.stop()

    assert "pool_mode = session" in caught.value.hint
    assert [] == told


def test_a_pooler_that_shares_sessions_keeps_no_setting() -> None:
    """The session is another program's, which had no time-outs after a check of the configuration."""
    url = new_database()
    pooler = SharingPooler(url)
    query = (
        "SELECT name FROM pg_settings WHERE source = 'session'"
        " AND name NOT IN ('application_name', 'client_encoding') ORDER BY name"
    )
    guest = PostgresAddress(pooler.url, is_guest=True)
    with closing(guest.connect("look")) as database:
        before = database.execute(query).fetchall()
        with pytest.raises(StorageError, match="gives one session to several"):
            PostgresAddress(pooler.url).connect("open")
        after = database.execute(query).fetchall()
    pooler.stop()

    assert after == before


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        # pgbouncer/pgbouncer#907, goauthentik/authentik#19939
        ("unsupported startup parameter: options", "does not pass `options` on"),
        ("unsupported startup parameter: extra_float_digits", "does not pass this parameter on"),
        # zalando/postgres-operator#1952, #2341: the server behind the pooler is away
        ("server login has been failing, try again later (server_login_retry)", "the server behind it"),
        ("client_login_timeout (server down)", "the server behind it"),
        ("server conn crashed?", "the server behind it"),
        ("query_wait_timeout", "default_pool_size"),
        ("no more connections allowed (max_client_conn)", "max_client_conn"),
        # brianc/node-postgres#1643: of the server itself; psycopg has no SQLSTATE of a connection
        ("sorry, too many clients already", "no connections left"),
        ("remaining connection slots are reserved for roles with SUPERUSER", "no connections left"),
        ('too many connections for role "ada"', "no connections left"),
        ('password authentication failed for user "ada"', "pgpass"),
        ('no pg_hba.conf entry for host "10.0.0.1", user "ada", no encryption', "pg_hba.conf"),
        ('database "log" does not exist', "create the database"),
        ('role "ada" does not exist', "create the role"),
        ("the database system is starting up", "tried again"),
        ("something of a later release", "check that the server runs"),
    ],
)
def test_what_a_pooler_refuses_with_is_told(words: str, hint: str) -> None:
    """PgBouncer gives one SQLSTATE for all of it."""
    refused = refusal(words, "ada")

    assert words in str(refused)
    assert refused.retryable
    assert hint in refused.hint
    assert ("`options`" in refused.hint) == ("options" in words)


def test_a_wrong_password_is_sought_where_it_came_from() -> None:
    """A homeserver's files have theirs: no pgpass file was asked."""
    refused = refusal('password authentication failed for user "ada"', "ada:hush")

    assert "came with the address" in refused.hint
    assert "pgpass" not in refused.hint
    assert "hush" not in str(refused)


def refusal(words: str, user: str) -> StorageError:
    """How a server is told that refuses a user with these words."""
    text = b"SFATAL\0C08P01\0M" + words.encode() + b"\0\0"
    refusal = b"E" + (len(text) + 4).to_bytes(4, "big") + text
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(refusal)

        threading.Thread(target=refuse, daemon=True).start()
        port = server.getsockname()[1]
        options = "sslmode=disable&gssencmode=disable&options=-csearch_path%3Dmine"
        address = PostgresAddress(f"postgresql://{user}@127.0.0.1:{port}/log?{options}")
        with pytest.raises(StorageError) as refused:
            address.connect("open")
    return refused.value
