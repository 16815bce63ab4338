"""Fills a log on disk faster than appends do: in large commits, without a reactor.

python -m scripts.bench_parts.log_filler FOLDER --upto SERIAL [--mixed | --row-bytes N]
"""

import argparse
import time
from collections.abc import Callable
from typing import Final

from scripts.bench_parts.measuring import event
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import chain
from synrepl.streams.facts import Fact
from synrepl.streams.writer import Writer

__all__ = ["MIXED_STREAMS", "fill"]

MIXED_STREAMS: Final = ("receipts", "events", "caches", "push_rules")
BEGAN_MS: Final = 1_795_219_200_000
GROUP: Final = 20_000
GROUP_BYTES: Final = 64 * 1024 * 1024

Made = tuple[str, str, bytes, int]
"""The stream, the writer, the rows and the time of a fact."""


def main() -> None:
    """Fill the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--upto", type=int, required=True, help="the last serial")
    parser.add_argument("--mixed", action="store_true", help="four streams; else equal events of one writer")
    parser.add_argument("--row-bytes", type=int, default=0)
    options = parser.parse_args()
    if options.mixed:
        fill(options.folder, options.upto, mixed)
    else:
        fill(options.folder, options.upto, events(options.row_bytes), group=group_of(options.row_bytes))
    print("{}")


def group_of(row_bytes: int) -> int:
    """Return how many facts with rows of this size to commit at once."""
    return max(1, min(GROUP, GROUP_BYTES // max(row_bytes, 1)))


def fill(folder: str, upto: int, make: Callable[[int], Made], *, group: int = GROUP) -> None:
    """Append facts to the log in this folder, each made from its serial, until the last one has `upto`."""
    engine = SQLEngine(SQLiteDatabase(f"{folder}/synrepl.db"))
    head = engine.open()
    digest, tokens, positions = head.digest, dict(head.allocated), dict(head.positions)
    facts: list[Fact] = []
    for serial in range(head.serial + 1, upto + 1):
        stream, writer, rows, at_ms = make(serial)
        token, prev = tokens.get(stream, 0) + 1, positions.get(Writer(stream, writer), 0)
        digest = chain(
            digest,
            serial=serial,
            epoch=head.epoch,
            stream=stream,
            writer=writer,
            prev_token=prev,
            token=token,
            committed_at_ms=at_ms,
            rows=rows,
        )
        facts.append(Fact(serial, head.epoch, stream, writer, prev, token, rows, at_ms, digest))
        tokens[stream] = positions[Writer(stream, writer)] = token
        if len(facts) == group or serial == upto:
            engine.commit(facts, [])
            facts = []
    engine.close()


def events(row_bytes: int = 0) -> Callable[[int], Made]:
    """Return what makes equal events of one writer, as of now."""
    made = "events", "master", b"[%b]" % event(row_bytes), int(time.time() * 1000)
    return lambda serial: made


def mixed(serial: int) -> Made:
    """Make a fact of one of four streams and three writers; about half of the rows repeat a key."""
    stream = MIXED_STREAMS[serial % 4]
    return stream, f"worker{serial % 3}", _rows(stream, serial), BEGAN_MS + serial * 10


def _rows(stream: str, serial: int) -> bytes:
    user, room = serial % 7_777, serial % 1_000
    match stream:
        case "receipts":
            return b'[["!r%d:h","m.read","@u%d:h","$e%d",null,{"ts":%d}]]' % (room, user, serial, serial)
        case "events":
            row = b'["$e%d:h","!r%d:h","m.room.message",null,null,null,null,false,false]' % (serial, room)
            return b'[["ev",%b]]' % row
        case "caches":
            return b'[["get_rooms_for_user",["@u%d:h"],%d]]' % (user, serial)
        case _:
            return b'[["@u%d:h"]]' % (serial % 777)


if __name__ == "__main__":
    main()
