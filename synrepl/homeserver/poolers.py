"""PgBouncer between a homeserver and its database: what its file says, and what Synapse needs of it.

In the modes ``transaction`` and ``statement`` PgBouncer gives a client another connection to PostgreSQL for
each transaction or statement. What was set for a connection is then lost, or is another client's. Synapse
sets what it needs when it opens a connection, and never again.
"""

import configparser
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.homeserver.file_notes import DEFAULT_POOL
from synrepl.homeserver.findings import Finding
from synrepl.homeserver.manifests import texts_in
from synrepl.homeserver.merging import ProcessConfig, Template, as_mapping
from synrepl.html.humanize import counted, several
from synrepl.small_files import read_small_file
from synrepl.wire.text import printable

PORT: Final = 6432
"""PgBouncer's default."""
FILE: Final = "pgbouncer.ini"
POOL_SIZE: Final = 20
MAX_CLIENTS: Final = 100
"""What counts where default_pool_size and max_client_conn are not set."""
SHARED: Final = ("transaction", "statement")
"""The modes in which connections to PostgreSQL are shared."""
POSTGRES_PORT: Final = 5432
_SECTION: Final = re.compile(r"^\s*\[pgbouncer\]", re.MULTILINE)
_WORD: Final = re.compile(r"(\w+)\s*=\s*(?:'([^']*)'|(\S*))")


class Pooler(msgspec.Struct, frozen=True, kw_only=True):
    """A PgBouncer, by its file: `modes` by database (``*`` for all others) and `users_modes` by user.

    `servers` are the host and port of PostgreSQL by database, as far as they are told. `sizes` are the most
    connections to PostgreSQL by database, for each user; `clients`, the most of all clients to PgBouncer.
    """

    file: str
    port: int
    modes: Mapping[str, str]
    users_modes: Mapping[str, str] = {}
    servers: Mapping[str, tuple[str, str]] = {}
    sizes: Mapping[str, int] = {}
    clients: int = MAX_CLIENTS

    def mode(self, target: "DatabaseAddress") -> str:
        """The mode of these connections; empty if it passes none of them on."""
        name = target.database if target.database in self.modes else "*"
        if target.port != self.port or name not in self.modes:
            return ""
        if self.servers[name] == (target.host, str(target.port)):
            return ""  # the address of PostgreSQL itself
        return self.users_modes.get(target.user, self.modes[name])

    def size(self, target: "DatabaseAddress") -> int:
        """The most connections to PostgreSQL that these have, of one database and user."""
        return self.sizes.get(target.database, self.sizes.get("*", POOL_SIZE))


class DatabaseAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A database of a process, as `args` has it, and the file with it."""

    process: str
    file: str
    host: str
    port: int
    database: str
    user: str
    pool: int


def take_poolers(paths: Sequence[Path]) -> tuple[list[Path], list[Pooler]]:
    """Return the paths that are no file of PgBouncer, and what those files say, and those beside the paths.

    Those in manifests are read as well; a manifest with nothing else in it is one of them. Raises
    `ConfigError` for a file that was given and is not what its name says.
    """
    given = [path for path in paths if path.suffix == ".ini" and path.is_file()]
    rest = [path for path in paths if path not in given]
    poolers = [read_pooler(path) for path in given]
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    for folder in folders:
        path = folder / FILE
        if path in given:
            continue
        try:
            poolers.append(read_pooler(path))
        except ConfigError:
            continue  # there is none, or nobody gave it to be read
    for path in dict.fromkeys(rest):
        inside = [one for file in _manifests(path) for one in _poolers_in(file)]
        poolers += inside
        if inside and path.is_file() and not texts_in(path, ".yaml") and not texts_in(path, ".yml"):
            rest = [one for one in rest if one != path]
    return rest, poolers


def _manifests(path: Path) -> list[Path]:
    return sorted(path.glob("*.yaml")) if path.is_dir() else [path]


def _poolers_in(path: Path) -> list[Pooler]:
    """The files of PgBouncer in a manifest, or in a file of Compose."""
    try:
        found = texts_in(path, ".ini")
    except ConfigError:
        return []  # it is told where the file is read for Synapse
    return [_parse(str(place), text) for place, text in found if _SECTION.search(text)]


def read_pooler(path: Path) -> Pooler:
    """Read a file of PgBouncer. Raises `ConfigError`."""
    return _parse(str(path), read_small_file(path).decode(errors="replace"))


def _parse(path: str, text: str) -> Pooler:
    # An indented line is one of its own, and no more of the one before. ``%include`` is not followed.
    lines = [line.strip() for line in text.splitlines()]
    parser = configparser.RawConfigParser(
        strict=False, allow_no_value=True, delimiters=("=",), comment_prefixes=(";", "#", "%")
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string("\n".join(lines))
    except configparser.Error:
        # Its text would quote a line, perhaps with a password.
        raise ConfigError(f"cannot read {path}: it is no INI") from None
    if not parser.has_section("pgbouncer"):
        raise ConfigError(f"{path} has no section [pgbouncer], and no other INI is read here")
    settings = _section(parser, "pgbouncer")
    mode = settings.get("pool_mode", "session").lower()
    databases = {name.strip('"'): _words(text) for name, text in _section(parser, "databases").items()}
    users = {name.strip('"'): _words(text) for name, text in _section(parser, "users").items()}
    port = settings.get("listen_port", "")
    reserve = _number(settings.get("reserve_pool_size", ""), 0)
    default_size = settings.get("default_pool_size", "")
    return Pooler(
        file=path,
        port=_number(port, PORT),
        modes={name: words.get("pool_mode", mode).lower() for name, words in databases.items()},
        users_modes={
            name: words["pool_mode"].lower() for name, words in users.items() if "pool_mode" in words
        },
        servers={
            name: (words.get("host", ""), words.get("port", str(POSTGRES_PORT)))
            for name, words in databases.items()
        },
        sizes={
            name: _number(words.get("pool_size", default_size), POOL_SIZE) + reserve
            for name, words in databases.items()
        },
        clients=_number(settings.get("max_client_conn", ""), MAX_CLIENTS),
    )


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else default


def _section(parser: configparser.RawConfigParser, name: str) -> dict[str, str]:
    return (
        {key: (value or "").strip() for key, value in parser.items(name)} if parser.has_section(name) else {}
    )


def _words(text: str) -> dict[str, str]:
    return {found[1]: found[2] if found[2] is not None else found[3] for found in _WORD.finditer(text)}


def targets_of(configs: Iterable[ProcessConfig]) -> Iterator[DatabaseAddress]:
    """Yield each database in PostgreSQL that the files name for a process."""
    for config in configs:
        several_databases = config.mapping("databases")
        key = "databases" if several_databases else "database"
        for one in several_databases.values() if several_databases else [config.mapping("database")]:
            database = as_mapping(one)
            arguments = as_mapping(database.get("args"))
            port = arguments.get("port", POSTGRES_PORT)
            if database.get("name") != "psycopg2" or not _is_number(port):
                continue
            yield DatabaseAddress(
                process=config.name,
                file=config.origin(key),
                host=str(arguments.get("host", "")),
                port=int(port),
                database=str(arguments.get("dbname", arguments.get("database", ""))),
                user=str(arguments.get("user", "")),
                pool=pool if type(pool := arguments.get("cp_max", DEFAULT_POOL)) is int else 0,
            )


def _is_number(port: Any) -> bool:
    text = "" if isinstance(port, Template | bool) else str(port)
    return text.isascii() and text.isdigit() and len(text) < 6


def find_shared_sessions(configs: Sequence[ProcessConfig], poolers: Sequence[Pooler]) -> Iterator[Finding]:
    """Databases that processes reach through a PgBouncer that shares its connections to PostgreSQL."""
    through: dict[tuple[str, str, str, str], list[str]] = {}
    for target in targets_of(configs):
        for pooler in poolers:
            if (mode := pooler.mode(target)) in SHARED:
                key = (pooler.file, target.database, target.user, mode)
                through.setdefault(key, []).append(target.process)
    for (file, database, user, mode), found in through.items():
        role = printable(user) or "ROLE"
        names = list(dict.fromkeys(map(str, found)))
        go = "goes" if len(names) == 1 else "go"
        yield Finding(
            kind="pooled_sessions",
            why=f"{several(names)} {go} to the database {printable(database)}"
            f" through the PgBouncer of {file}, with `pool_mode = {mode}`: each {mode} may get another"
            " connection to PostgreSQL. Synapse sets what it relies on (isolation level, bytea_output, time"
            " limits) once for a connection: it is lost, or is another client's",
            remedy=f"set `pool_mode = session` in {file}, or `pool_mode=session` at {printable(database)} in"
            " [databases] there, with a pool_size for the connections of all processes (cp_max of each). Or"
            " give Synapse a role of its own that has these settings: ALTER ROLE"
            f" {role} SET default_transaction_isolation = 'repeatable read'; ALTER ROLE {role} SET"
            " bytea_output = 'escape'",
            cost="a restart of PgBouncer, or RELOAD and new connections: processes connect again",
        )


def note_small_pools(configs: Sequence[ProcessConfig], poolers: Sequence[Pooler]) -> Iterator[Finding]:
    """Pools of PgBouncer with fewer connections than the processes may open together, each for itself."""
    for pooler in poolers:
        pools: dict[tuple[str, str], list[DatabaseAddress]] = {}
        for target in targets_of(configs):
            if pooler.mode(target) == "session":
                pools.setdefault((target.database, target.user), []).append(target)
        for (database, user), targets in pools.items():
            needed = sum(one.pool for one in targets)
            size = pooler.size(targets[0])
            if needed > size:
                yield Finding(
                    kind="small_pool",
                    why=f"{counted(len({one.process for one in targets}), 'process', 'processes')} may open"
                    f" {needed} connections (`cp_max` of each) through the PgBouncer of {pooler.file}, which"
                    f" has {size} to PostgreSQL for the database {printable(database)} and the user"
                    f" {printable(user)}: in the mode session each holds one for as long as it is open, so"
                    " that the others wait, and are closed after query_wait_timeout (2 min, if not set)",
                    remedy=f"set default_pool_size in {pooler.file}, or pool_size at {printable(database)} in"
                    f" [databases], to {needed} or more, with max_connections of PostgreSQL above it; or"
                    " lower cp_max",
                )
        clients = sum(one.pool for targets in pools.values() for one in targets)
        if clients > pooler.clients:
            yield Finding(
                kind="small_pool",
                why=f"the processes may open {clients} connections (`cp_max` of each) to the PgBouncer of"
                f" {pooler.file}, which takes {pooler.clients} of all clients (max_client_conn): it refuses"
                " more",
                remedy=f"set max_client_conn there to {clients} and what other programs need",
            )


def note_poolers(configs: Sequence[ProcessConfig], poolers: Sequence[Pooler]) -> Iterator[Finding]:
    """A port that is PgBouncer's by default, where no file tells how it shares connections."""
    unknown = [
        target
        for target in targets_of(configs)
        if target.port == PORT and not any(pooler.mode(target) for pooler in poolers)
    ]
    for file in dict.fromkeys(target.file for target in unknown):
        yield Finding(
            kind="pooler",
            why=f"the database in {file} is at port {PORT}, which is PgBouncer's: its pool_mode is not known,"
            " and Synapse needs `session`",
            remedy=f"look at pool_mode; given with --homeserver, or beside the files, {FILE} is read too",
        )


def find_workers_on_sqlite(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """Workers whose database is a file of SQLite."""
    names = [
        config.name
        for config in configs
        if not config.is_main and config.mapping("database").get("name") == "sqlite3"
    ]
    if names:
        yield Finding(
            kind="workers_on_sqlite",
            process=names[0] if len(names) == 1 else "",
            count=len(names),
            why=f"{several([*map(printable, names)])} and the main process share a file of SQLite: there"
            " no process tells the others of caches that are stale, and one alone can write at a time",
            remedy="run the homeserver without workers, or move it to PostgreSQL first (synapse_port_db)",
            cost="the homeserver is stopped while its rows are copied",
        )
