"""A process that opens a log, adds to it, has it replaced by a copy and closes it, until it is killed.

Run with the path of the database. It prints the serial once a fact is durable.
"""

import os
import sys

from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.facts import Fact
from tests.storage.builders import facts_after

FACTS_A_LIFE = 3


def main(path: str) -> None:
    """Live again and again, until killed."""
    facts: list[Fact] = []
    while True:
        engine = SQLEngine(SQLiteDatabase(path))
        head = engine.open()
        facts = engine.pages.facts(after=0, upto=head.serial, limit=10**9)[0]
        for _ in range(FACTS_A_LIFE):
            last = facts[-1] if facts else None
            token = len(facts)
            fact = facts_after(last, ("events", "w1", token, token + 1))
            engine.commit(fact, [])
            facts += fact
            os.write(1, b"%d\n" % len(facts))
            engine.check()
        copy = engine.staging()
        standing = copy.open()
        # A copy has a history of its own, and holds all that the log holds.
        copy.commit(facts[standing.serial :], [])
        copy.close()
        engine.adopt_staged()
        engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
