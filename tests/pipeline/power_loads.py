"""What is archived until the power is cut: so much that the log of the table gets a checkpoint."""

from typing import Final

from tests.pipeline.crash_scenarios import ArchiveScenario
from tests.storage.builders import facts_after

LOADS: Final = {"archive": "tests.pipeline.power_loads:ArchiveLoad"}


class ArchiveLoad(ArchiveScenario):
    """Two facts of two streams in each of 110 batches; merged and vacuumed at the end."""

    FACTS = facts_after(
        None,
        *((stream, "w", n, n + 1) for n in range(110) for stream in ("to_device", "push_rules")),
    )
