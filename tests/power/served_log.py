"""A log by all of its ways out: changelog, relay, rows by token, JOIN, and what is beside the facts."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from click.testing import CliRunner

from synrepl.cli.main import main
from synrepl.storage.engine import SQLEngine
from synrepl.storage.wal_check import FRAME, HEADER
from synrepl.wire.filter import Filter
from tests.power.bits import Served
from tests.power.disk import State
from tests.power.loads import STREAMS, LogLoad

MANY: Final = 10**9

FILTERS: Final = [
    Filter(streams=frozenset({"receipts"})),
    Filter(streams=frozenset(STREAMS), writers=frozenset({"w1"})),
]


def _whole(read: Callable[..., tuple[bytes, int]], upto: int) -> bytes:
    after, found = 0, []
    while after < upto:
        text, after = read(after=after, upto=upto)
        found.append(text)
    return b"".join(found)


class ServedLog(LogLoad, Served):
    """The log of `LogLoad`, read in one process with the reads that all ways out are made of."""

    # Neither trimmed nor a copy of a trimmed one: its digests reach from the first fact to the last.
    WEIGHTS: ClassVar[Mapping[str, int]] = {**LogLoad.WEIGHTS, "trim": 0, "copy": 0}
    KINDS: ClassVar = {
        "log": ["synrepl.db"],
        "wal": ["synrepl.db-wal"],
        "state": ["synrepl.db.state"],
        "open log": ["synrepl.db"],
    }
    WHILE_OPEN: ClassVar = ("open log",)

    @staticmethod
    def cut(state: State) -> Iterable[State]:
        """Without the last commits in the ``-wal``, one or two: see `synrepl/storage/wal_check.py`."""
        wal = state.get("synrepl.db-wal") or b""
        if len(wal) <= HEADER.size:
            return
        size = FRAME.size + HEADER.unpack_from(wal)[2]
        frames = range(HEADER.size, len(wal) - size + 1, size)
        salts = HEADER.unpack_from(wal)[4:6]
        ends = [
            at + size
            for at in frames
            if FRAME.unpack_from(wal, at)[1] and FRAME.unpack_from(wal, at)[2:4] == salts
        ]
        for end in ends[-4:-1]:
            yield {**state, "synrepl.db-wal": wal[:end]}

    def served(self) -> Any:
        engine = self.engine()
        try:
            engine.open()
            self.once_open()
            return self._read(engine)
        finally:
            engine.close()

    @staticmethod
    def _read(engine: SQLEngine) -> Any:
        head, pages = engine.head(), engine.pages
        upto = head.serial
        texts = {
            form: _whole(partial(pages.text, limit=MANY, form=form), upto) for form in ("json", "fields")
        }
        snapshot = engine.snapshot()
        return {
            "head": [head.position, head.trimmed_upto, head.epoch_starts, dict(head.positions)],
            "texts": texts,
            "facts": pages.facts(after=0, upto=upto, limit=MANY),
            "rows": [
                pages.tokens(stream=stream, writer=None, after=0, upto=MANY, serial=upto, limit=MANY)
                for stream in STREAMS
            ],
            "filtered": [_whole(partial(pages.text, limit=MANY, filter=one), upto) for one in FILTERS],
            "extent": pages.extent(after=0, upto=upto, limit=MANY),
            "snapshot": snapshot,
            "digests": [engine.digest_at(serial) for serial in range(head.trimmed_upto.serial, upto + 1, 97)],
            "receipts": engine.receipts.between(0, upto),
            "leases": engine.leases.all(),
            "notes": engine.notes.all(),
        }

    def complaints(self) -> list[str]:
        """What `synrepl doctor` prints."""
        database = f"sqlite:{self.position / 'synrepl.db'}"
        done = CliRunner().invoke(main, ["doctor", "--database", database])
        return [done.output] if done.exit_code else []


class ServedTrimmedLog(ServedLog):
    """A log that was trimmed, and replaced by a copy: the digests of its older part cannot be checked."""

    WEIGHTS = LogLoad.WEIGHTS
    KINDS: ClassVar = {"trimmed log": ["synrepl.db"]}
