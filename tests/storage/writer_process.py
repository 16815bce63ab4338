"""A process that appends for ever and prints each serial once it is acknowledged; its end is a kill.

Run with the path of the database. Eight writers, each waiting for its answer, over real threads.
"""

import os
import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.selectreactor import SelectReactor
from twisted.logger import Logger

from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.threads import ReactorThread

WRITERS = 8


def main(path: str) -> None:
    """Append until killed."""
    reactor: Any = SelectReactor()
    writing, reading = (ReactorThread(reactor, name) for name in ("writing", "reading"))
    log = Log(SQLEngine(SQLiteDatabase(path)), writing, reading, reactor, ephemeral=[], logger=Logger())

    async def write(writer: str) -> None:
        count = 0
        while True:
            count += 1
            # A pair: whoever finds one without the other has found half a group.
            pair = [b'[["%s",%d]]' % (half, count) for half in (b"first", b"second")]
            answer = await log.append("events", writer, pair)
            os.write(1, f"{writer} {answer.first_serial} {answer.tokens[0]} {count}\n".encode())

    async def run() -> None:
        await log.start()
        for number in range(WRITERS):
            Deferred.fromCoroutine(write(f"w{number}")).addErrback(failed)

    def failed(failure: Any) -> None:
        os.write(2, failure.getTraceback().encode())
        os._exit(1)

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(run()).addErrback(failed))
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1])
