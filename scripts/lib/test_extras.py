"""Which extras of setup.py the tests under some paths need: most need neither Spark nor a server.

    test_extras.py [what pytest takes]

prints them, one a line. `scripts/test` asks before there is an environment, with the standard library alone.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent

ALL: Final = frozenset({"test"})
DEV: Final = frozenset({"dev"})
SERVERS: Final = frozenset({"dev", "servers"})

EXTRAS: Final[Mapping[str, frozenset[str]]] = {
    "tests": ALL,
    "tests/caches": DEV,
    "tests/channel": SERVERS,
    "tests/cli": DEV,
    "tests/homeserver/commands/test_doctor.py": SERVERS,
    "tests/homeserver/commands/test_held_streams.py": SERVERS,
    "tests/contrib": DEV,
    "tests/contrib/test_proxies.py": SERVERS,
    "tests/files": DEV,
    "tests/files/processes": SERVERS,
    "tests/files/test_crash.py": SERVERS,
    "tests/files/test_queue_database.py": SERVERS,
    "tests/http": DEV,
    "tests/http/test_arrow.py": frozenset({"dev", "arrow"}),
    "tests/homeserver": DEV,
    "tests/homeserver/doctor": SERVERS,
    "tests/homeserver/processes": SERVERS,
    "tests/homeserver/tables": SERVERS,
    "tests/homeserver/trial": SERVERS,
    "tests/homeserver/test_database.py": SERVERS,
    "tests/homeserver/test_homeserver_invalidations.py": SERVERS,
    "tests/homeserver/test_hostile_files.py": SERVERS,
    "tests/homeserver/test_transactions.py": SERVERS,
    "tests/museum": DEV,
    "tests/ids": SERVERS,
    "tests/ingest": DEV,
    "tests/base": DEV,
    "tests/power": DEV,
    "tests/power/test_flipped_daemon.py": SERVERS,
    "tests/soak": SERVERS,
    "tests/processes": SERVERS,
    "tests/redis": DEV,
    "tests/redis/test_server.py": SERVERS,
    "tests/replication": DEV,
    "tests/service": DEV,
    "tests/service/test_serve.py": SERVERS,
    "tests/simulation": DEV,
    "tests/storage": SERVERS,
    "tests/streams": DEV,
    "tests/testing": DEV,
    "tests/transports": DEV,
    "tests/trial": SERVERS,
    "tests/wire": DEV,
}
"""The longest path that holds a test file says what it needs."""


def needed(arguments: Iterable[str]) -> frozenset[str]:
    """The extras for these arguments of pytest: everything if no path among them leads to tests."""
    paths = [(ROOT / argument.partition("::")[0]).resolve() for argument in arguments]
    named = [path for path in paths if path.exists() and path.is_relative_to(ROOT / "tests")]
    files = [file for path in named for file in (path.rglob("test_*.py") if path.is_dir() else [path])]
    if not files:
        return ALL
    found = frozenset[str]().union(*(extras_of(file.relative_to(ROOT)) for file in files))
    return ALL if "test" in found else found


def extras_of(file: Path) -> frozenset[str]:
    """What the table says about this file of the checkout."""
    return next(EXTRAS[place.as_posix()] for place in (file, *file.parents) if place.as_posix() in EXTRAS)


if __name__ == "__main__":
    print(*sorted(needed(sys.argv[1:])), sep="\n")
