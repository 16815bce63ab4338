"""A process that runs a load, ``module:class``, in the recorded folder.

What the load says becomes marks of the journal.
"""

import os
import sys
from pathlib import Path

from tests.crash.scenarios import named
from tests.power.journal import Journal
from tests.power.recording import FOLDER, JOURNAL

if __name__ == "__main__":
    journal = Journal(Path(os.environ[JOURNAL]))
    named(sys.argv[1], os.environ[FOLDER]).run(journal.mark)
