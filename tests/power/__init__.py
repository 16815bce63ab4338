"""Power cuts: every state that a disk may be found in, after which what was acknowledged must be there."""

from typing import Final

LOADS: Final = {
    "log": "tests.power.loads:LogLoad",
    "daemon": "tests.power.daemon_load:DaemonLoad",
    "postgres": "tests.power.postgres_load:PostgresLoad",
}
"""What scripts/power records: the module and class of the load on each store."""

SERVED: Final = {
    "log": "tests.power.served_log:ServedLog",
    "trimmed log": "tests.power.served_log:ServedTrimmedLog",
}
"""Of what scripts/power flips bits: the same, with all ways out."""
