"""A process that runs a load, ``module:class``, in the recorded folder.

What the load says becomes marks of the journal.
"""

import os
import sys
from itertools import count
from pathlib import Path
from typing import Final

from tests.crash.scenarios import Acknowledged, named
from tests.power.journal import Journal
from tests.power.recording import FOLDER, JOURNAL

NOTED_EVERY: Final = 50
"""After so many marks the files that are written through a mapping are noted."""


def main(load: str) -> None:
    """Run the load."""
    journal, folder = Journal(Path(os.environ[JOURNAL])), Path(os.environ[FOLDER])
    marks = count(1)

    def mark(said: Acknowledged) -> None:
        journal.mark(said)
        if next(marks) % NOTED_EVERY == 0:
            journal.note_mapped(folder)

    named(load, str(folder)).run(mark)


if __name__ == "__main__":
    main(sys.argv[1])
