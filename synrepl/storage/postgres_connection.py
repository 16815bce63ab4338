"""A connection to PostgreSQL: silent servers are detected, errors are `StorageError`s without passwords.

psycopg is an extra; it is imported for the first connection.
"""

import os
import re
import select
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.extras import install
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.sql import DAMAGED
from synrepl.wire.text import printable

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_logger: Final = Logger(namespace="synrepl.storage")

PATIENCE: Final = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""The timeouts after which a silent server counts as gone, in libpq's units. The URL takes precedence."""

LIMITS: Final = [
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "transaction_timeout",
]

SETTINGS: Final = {"standard_conforming_strings": "on", "bytea_output": "hex"}
"""Settings that decide what bytes and strings in a statement or an answer mean. The server, a database or a
role may have others, for old applications.
"""

POOLER: Final = (
    "a pooler stands before the server: it must not give a session to others (PgBouncer: pool_mode ="
    " session), or two daemons can have one log; better name the server itself"
)

SHARED: Final = "a pooler before the server gives one session to several connections (server process {pid})"
SHARED_HINT: Final = (
    "the lock that lets one daemon have a log is a session's, as are settings: name the server itself, or"
    " give this database sessions of its own (PgBouncer: pool_mode = session)"
)

POOL_LOOKS: Final = 3
"""How often two connections through a pooler are compared by their server processes."""

SERVER_AWAY: Final = (
    "a pooler (PgBouncer) answers, and the server behind it does not: look whether PostgreSQL runs, and at"
    " the log of the pooler"
)
ROLE_SETS: Final = (
    "give the role such settings (ALTER ROLE ... SET), or name the server itself; with"
    " ignore_startup_parameters the pooler drops them in silence"
)
NO_CONNECTION: Final = (
    "the server has no connections left: end some, raise max_connections (or the limit of this role or"
    " database), or put a pooler before it that gives whole sessions"
)
REFUSED_USER: Final = "check the user, and its password in the pgpass file"
REFUSED_USER_AS_GIVEN: Final = "check the user and its password, which came with the address of the database"
"""The same, if no pgpass file is asked."""
NOT_READY: Final = "the server is starting, stopping or recovering: it is tried again"
REFUSALS: Final = {
    "unsupported startup parameter: options": "a pooler before the server (PgBouncer) does not pass `options`"
    f" on, of the address or of PGOPTIONS: leave them out, and {ROLE_SETS}",
    "unsupported startup parameter": "a pooler before the server (PgBouncer) does not pass this parameter on:"
    f" {ROLE_SETS}",
    "server_login_retry": SERVER_AWAY,
    "server down": SERVER_AWAY,
    "server conn crashed": SERVER_AWAY,
    "query_wait_timeout": "the pooler (PgBouncer) has no session left to give: raise its default_pool_size",
    "max_client_conn": "the pooler (PgBouncer) takes no more clients: raise its max_client_conn",
    "too many clients already": NO_CONNECTION,
    "remaining connection slots": NO_CONNECTION,
    "too many connections for": NO_CONNECTION,
    "password authentication failed": REFUSED_USER,
    "no password supplied": "write the password into a pgpass file, of this user alone (chmod 600)",
    "no pg_hba.conf entry": "the server lets this user not in from here: add a line for it to its"
    " pg_hba.conf, and reload it",
    "the database system is": NOT_READY,
    "could not translate host name": "no address is known for this name: correct it, or look at the resolver",
    "server does not support SSL": "the server has no TLS: sslmode=prefer, or switch ssl on there",
    "certificate verify failed": "the certificate's CA is not trusted: name it with sslrootcert",
    "is not permitted to log in": "ALTER ROLE of this user LOGIN",
}
"""What a server or a pooler refuses a connection with, and what helps. From libpq it has no SQLSTATE, and of
a pooler one for all.
"""
_ABSENT: Final = re.compile(r'FATAL: (database|role) "[^"]*" does not exist')

READ_ONLY: Final = "25006"
"""The SQLSTATE of a write that a standby, or a server that is read only, refuses."""

HINTS: Final = {
    "08": "check that the server runs, can be reached, and lets this user into this database",
    READ_ONLY: "the server is a standby, or read only; use the primary",
    "26000": POOLER,
    "42P05": POOLER,
    "28": REFUSED_USER,
    "3D000": "create the database, or choose another one",
    "42P01": "correct the table's name in the configuration, or stop the daemon and restore a backup",
    "42501": "tables of the homeserver: grant SELECT to this user; the log: grant CREATE on the database, or"
    " make a schema synrepl of this user's own, and to join as a replica also a schema synrepl_joining",
    "53": "the server has run out of a resource; free some",
    "53100": "the server's disk is full; free some space",
    "53300": "the server has too many connections; close some, or raise max_connections",
    "55P03": "another session keeps a table of the log locked: SELECT pid, application_name, query FROM"
    " pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock')"
    " shows it, and SELECT pg_terminate_backend(PID) ends it",
    "57P": "the server is stopping or starting; try again later",
    "58": "the server's disk or system failed; check its log",
    "XX001": DAMAGED.format(database="database"),
    "XX002": DAMAGED.format(database="database"),
}
"""What the operator can do, by SQLSTATE or its prefix."""

OUT_OF_RANGE: Final = "22003"
"""The SQLSTATE of a number that is too large."""

RETRYABLE: Final = {"08", READ_ONLY, "40", "53", "55", "57", "58"}

MAX_NAME: Final = 300
"""The most characters of the name of a database that are shown."""
MAX_IDENTIFIER: Final = 63
"""The most characters of a name that PostgreSQL keeps."""

MAX_READS: Final = 100
"""The number of socket reads after which a connection with more data counts as alive."""


class PostgresAddress:
    """The address of a database, for making connections. Its text is safe to show.

    The server lists the connections under a name of `what`, the process id and the host. `url` may also be
    parameters of libpq, with a further connection string in `dsn`. A guest changes nothing in its session,
    which a pooler may give to another program afterwards.
    """

    def __init__(
        self, url: str | Mapping[str, str], *, what: str = "synrepl", is_guest: bool = False
    ) -> None:
        from_url = _parse(url) if isinstance(url, str) else _parse(url.get("dsn", "")) | _without_dsn(url)
        self._secrets = _secrets(from_url)
        self._is_guest = is_guest
        self._parameters = {**PATIENCE, **from_url}
        self._parameters["client_encoding"] = "utf8"
        self._parameters["application_name"] = f"{what} {os.getpid()} {socket.gethostname()}"
        self.name = printable(_without(self._secrets, _redacted(from_url)), limit=MAX_NAME)
        self._is_pooled = False

    def __repr__(self) -> str:
        return f"<PostgresAddress {self.name}>"

    def connect(self, op: str) -> "Connection":
        """Connect in autocommit mode. Raises `StorageError` with `tried` False if that fails."""
        connect = _psycopg().connect
        with self.map_errors(op, tried=False):
            database: Connection = connect(autocommit=True, **self._parameters)
            if self._is_guest:
                database.prepare_threshold = None
                return database
            try:
                # First: a session that is refused is another program's, and keeps no setting of this one.
                self._look_for_pooler(database, op)
                # Limits that an operator set for other programs must not interrupt this one.
                database.execute("SET statement_timeout = 0")
                database.execute(
                    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = ANY(%s)", (LIMITS,)
                )
                for name, value in SETTINGS.items():
                    database.execute("SELECT set_config(%s, %s, false)", (name, value))
            except BaseException:
                database.close()
                raise
        return database

    def _look_for_pooler(self, database: "Connection", op: str) -> None:
        """Warn, once, if the process behind this connection is not the one that answered it.

        Raises `StorageError` if that process serves another connection as well: PgBouncer in its modes
        transaction and statement does so, and gave one lock to two daemons.
        """
        if _server_process(database) == database.info.backend_pid:
            return
        # Another session may not have what was prepared in this one.
        database.prepare_threshold = None
        if self._is_pooled:
            return
        with _psycopg().connect(autocommit=True, **self._parameters) as other:
            for _ in range(POOL_LOOKS):
                if (pid := _server_process(other)) == _server_process(database):
                    why = f"{self.name}: {SHARED.format(pid=pid)}"
                    raise StorageError(op=op, why=why, hint=SHARED_HINT, tried=False)
        self._is_pooled = True
        _logger.warn("{name}: {why}", name=self.name, why=POOLER)

    @contextmanager
    def map_errors(self, op: str, stream: str = "", *, tried: bool = True) -> Iterator[None]:
        """Raise PostgreSQL's errors as `StorageError`, with a hint where one is known."""
        try:
            yield
        except UnicodeEncodeError as error:
            raise InvalidValue(op=op, why="a text has a lone surrogate", stream=stream) from error
        except (OverflowError, struct.error) as error:
            # Of psycopg's fast and its plain implementation, for a number in a binary COPY.
            raise InvalidValue(op=op, why="a number has more than 64 bits", stream=stream) from error
        except _psycopg().Error as error:
            state = error.sqlstate or ("08" if isinstance(error, _psycopg().OperationalError) else "")
            why = _without(self._secrets, " ".join(str(error).split())) or type(error).__name__
            why = printable(why, limit=len(why))  # the server quotes names, and rows
            refusal = next((hint for words, hint in REFUSALS.items() if words in why), "")
            if absent := _ABSENT.search(why):
                refusal = f"create the {absent[1]}, or correct its name"
            if state == OUT_OF_RANGE or (not state and isinstance(error, _psycopg().DataError)):
                raise InvalidValue(op=op, why=why, stream=stream) from error
            hint = (refusal if state[:2] == "08" else "") or next(
                (HINTS[part] for part in (state, state[:3], state[:2]) if part in HINTS), ""
            )
            if hint == REFUSED_USER and self._parameters.get("password"):
                hint = REFUSED_USER_AS_GIVEN
            raise StorageError(
                op=op,
                why=f"{self.name}: {why}",
                hint=hint,
                stream=stream,
                retryable=bool({state, state[:2]} & RETRYABLE),
                tried=tried,
            ) from error


def is_read_only(error: StorageError) -> bool:
    """Whether a server refused a write because it takes none now."""
    return getattr(error.__cause__, "sqlstate", None) == READ_ONLY


def is_alive(database: "psycopg.Connection[Any]") -> bool:
    """Whether an idle connection is still open, as far as is known without a query."""
    waiting = select.poll()
    try:
        waiting.register(database.fileno(), select.POLLIN)
        for _ in range(MAX_READS):
            if not waiting.poll(0):
                break
            # The end of the connection is read only after all data before it.
            database.pgconn.consume_input()
            database.pgconn.is_busy()
    except _psycopg().Error:
        return False
    return not database.closed


def _server_process(database: "psycopg.Connection[Any]") -> int:
    found = database.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return int(found[0]) if found else 0


@cache
def _psycopg() -> Any:
    try:
        import psycopg  # an extra
    except ImportError as error:
        raise StorageError(
            op="open",
            why=f"PostgreSQL needs psycopg: {error}",
            hint=f"run {install('postgres')}",
            tried=False,
        ) from error
    return psycopg


def _parse(url: str) -> dict[str, Any]:
    """The parameters in the URL, by libpq's names."""
    _psycopg()
    from psycopg.conninfo import conninfo_to_dict  # an extra

    try:
        return conninfo_to_dict(url)
    except _psycopg().Error:
        # The original error may contain a password.
        raise StorageError(
            op="open", why="the database is not a PostgreSQL URL", hint="use postgresql://user@host/database"
        ) from None


def _secrets(parameters: Mapping[str, Any]) -> list[str]:
    """Texts that no message may have: passwords, and values in whose place somebody wrote a URL with one."""
    found = [str(parameters[name]) for name in ("password", "sslpassword") if parameters.get(name)]
    for value in map(str, parameters.values()):
        if "://" in value or "password" in value.lower():
            # The server quotes no more than the beginning of a name.
            found += [value, value[:MAX_IDENTIFIER]]
    return sorted(found, key=len, reverse=True)


def _without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _without_dsn(parameters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if name != "dsn"}


def _redacted(parameters: dict[str, Any]) -> str:
    user = f"{parameters['user']}@" if parameters.get("user") else ""
    host = str(parameters.get("host", ""))
    is_path = host.startswith("/")
    port = f":{parameters['port']}" if parameters.get("port") else ""
    where = "" if is_path else host
    return f"postgresql://{user}{where}{port}/{parameters.get('dbname', '')}" + (
        f"?host={host}" if is_path else ""
    )
