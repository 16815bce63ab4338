"""Helpers of the programs that benchmarks start: the reactor, a log on disk, and the output."""

import json
import sys
from typing import Any

from twisted.internet import reactor as installed
from twisted.logger import Logger

from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.threads import ReactorThread

__all__ = ["open_log", "print_and_stop", "reactor"]

reactor: Any = installed


def print_and_stop(found: Any) -> None:
    """Print a result as JSON, or the traceback of a failure, and stop the reactor."""
    if not isinstance(found, dict):
        found.printTraceback(sys.stderr)
    else:
        print(json.dumps(found))
    reactor.stop()


async def open_log(folder: str) -> Log:
    """Open a log in this folder, with threads of its own."""
    log = Log(
        SQLEngine(SQLiteDatabase(f"{folder}/synrepl.db")),
        ReactorThread(reactor, "writing"),
        ReactorThread(reactor, "reading"),
        reactor,
        ephemeral=[],
        logger=Logger(),
    )
    await log.start()
    return log
