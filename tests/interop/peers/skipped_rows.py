"""How the newest release skips rows of a stream that several processes write, shown with its own classes.

skipped_rows.py

A writer allocates token 14 and has not got it yet, so that its position may not pass 10. Meanwhile it commits
12 and 13, and another writer's 11 comes in. That closes the gap from 10: the generator says that all is
persisted up to 13, while the writer's own position, which says whether it has anything to tell, is 10 still.
The stream moves to 13 and tells nothing; after it, 14 is told. Prints what it told as JSON:
``{"release": ..., "written": [...], "told": [...]}``.
"""

import asyncio
import json
from unittest import mock

import synapse
from synapse.replication.tcp.streams._base import Stream
from synapse.storage.util import id_generators

TARGET = "synapse.storage.util.id_generators."


class Sequence:
    """The sequence of the database, whose next answer `meanwhile` is late for."""

    def __init__(self):
        self.token = 11  # the other writer has it
        self.meanwhile = None

    def check_consistency(self, *args, **kwargs):
        """It is."""

    def get_next_mult_txn(self, txn, count):
        """Answer with so many tokens."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        tokens = list(range(self.token + 1, self.token + 1 + count))
        self.token = tokens[-1]
        return tokens


class Transaction:
    """A transaction, which does at `commit` what it was told to do after it."""

    def __init__(self):
        self._after = []

    def call_after(self, function, *args):
        """Call this after the commit."""
        self._after.append((function, args))

    def call_on_exception(self, function, *args):
        """There is none."""

    def commit(self):
        """It is committed."""
        for function, args in self._after:
            function(*args)


class Caches(Stream):
    """A stream as Synapse has several, of the generator's own rows."""

    NAME = "caches"

    def __init__(self, ids, committed):
        self._ids = ids
        self._committed = committed
        super().__init__("master", self._rows)

    def current_token(self, instance_name):
        return self._ids.get_current_token_for_writer(instance_name)

    def minimal_local_current_token(self):
        return self._ids.get_minimal_local_current_token()

    async def _rows(self, instance, last, upto, limit):
        return [(token, None) for token in sorted(self._committed) if token > last], upto, False


def main():
    sequence = Sequence()

    def load(self, *args):
        self._current_positions.update(master=10, worker=10)
        self._persisted_upto_position = 10

    build = mock.patch(TARGET + "build_sequence_generator", return_value=sequence)
    with build, mock.patch(TARGET + "MultiWriterIdGenerator._load_current_ids", load):
        ids = id_generators.MultiWriterIdGenerator(
            db_conn=None,
            db=mock.Mock(),
            notifier=mock.Mock(),
            stream_name="caches",
            server_name="hs",
            instance_name="master",
            tables=[],
            sequence_name="caches",
            writers=[],
        )
    committed, told = [], []
    stream = Caches(ids, committed)

    def tell():
        if stream.last_token != stream.current_token("master"):
            rows, _, _ = asyncio.run(stream.get_updates())
            told.extend(token for token, _ in rows)

    def meanwhile():
        transaction = Transaction()
        committed.extend(ids.get_next_mult_txn(transaction, 2))
        transaction.commit()
        tell()
        ids.advance("worker", 11)
        tell()
        ids.advance("worker", 11)  # its POSITION, after its row
        tell()

    sequence.meanwhile = meanwhile
    late = Transaction()
    committed.append(ids.get_next_txn(late))
    late.commit()
    tell()
    print(json.dumps({"release": synapse.__version__, "written": sorted(committed), "told": told}))


main()
