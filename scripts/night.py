"""Run what is drawn anew each night, a part after another, and keep a table of what was tried."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts import again

TABLE: Final = "build/night.jsonl"
USAGE: Final = (
    "usage: scripts/night [--seeds N] [--minutes N]"
    " [seeds] [worlds] [backups] [jobs] [examples] [faults] [interop] [rooms] [manual] [bench] [power] [bits]"
    " [soak] [growth]"
    " | scripts/night --table"
)
SEEDS: Final = 200
MINUTES: Final = 60
"""How long the piece of the soak is."""
WORLD_SEEDS: Final = 1_000
FAULTS: Final = 40
BITS: Final = 500
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "4")

Part = tuple[Sequence[str], Mapping[str, str]]


def _seeded_tests() -> list[str]:
    """The tests that a seed changes, of the core and of each room."""
    kinds = ("simulation", "processes", "crash", "test_crash.py")
    found = [path for kind in kinds for path in again.ROOT.glob(f"tests/**/{kind}")]
    return sorted(path.relative_to(again.ROOT).as_posix() for path in found if path.parent.name != "crash")


def _long(name: str, drawn: Mapping[str, str], *patterns: str) -> dict[str, Part]:
    """The part of this name: these tests at full length, one after the other; none without their room."""
    paths = [path for pattern in patterns for path in again.ROOT.glob(pattern)]
    found = sorted(str(path.relative_to(again.ROOT)) for path in paths)
    return {name: ((*PYTEST[:4], *found), {**drawn, "SYNREPL_LONG": "1"})} if found else {}


def parts(day: int, seeds: int, minutes: int = MINUTES) -> dict[str, Part]:
    """Return the command and the variables of each part. Each day has seeds and faults of its own."""
    drawn = {"SYNREPL_FIRST_SEED": str(day * 1_000), "SYNREPL_SEEDS": str(seeds)}
    return {
        "seeds": ((*PYTEST, *_seeded_tests(), "tests/storage/test_kill.py"), drawn),
        # Behind the last ones of the table in the tree: commit what it has got.
        "worlds": (("scripts/simulate", "--continue", "--seeds", str(WORLD_SEEDS)), {}),
        # 1,000 kills of a backup and its daemon at 1,000 facts a second, so one after the other.
        **_long("backups", drawn, "tests/**/test_backup_kills.py"),
        # Jobs that are killed as they archive a million facts; local ones that are, or have 10,000,000 rows.
        **_long("jobs", drawn, "tests/pipeline/test_*_kills.py", "tests/pipeline/test_local_memory.py"),
        "examples": ((*PYTEST, "tests", "-m", "not slow and not spark"), {"HYPOTHESIS_PROFILE": "night"}),
        "faults": (("scripts/mutate", "--draw", str(day), str(FAULTS)), {}),
        "interop": (("scripts/interop", "--available"), {}),
        "rooms": (("scripts/rooms", "--whole"), {}),
        # With the jobs of the pipeline on Spark.
        "manual": ((sys.executable, "scripts/printed_commands.py"), {}),
        # Whether each benchmark still runs. Its times are not judged.
        "bench": (("scripts/bench", "--quick"), {}),
        "power": (("scripts/power", "--seed", str(day)), {}),
        "bits": (("scripts/power", "--bits", str(BITS), "--seed", str(day)), {}),
        # In a folder that stays: its table build/soak.jsonl has the hours so far.
        "soak": (("scripts/soak", "--minutes", str(minutes)), {}),
        "growth": (("scripts/bench", "--quick", "--only", "growth"), {}),
    }


def main(words: Sequence[str], root: Path = again.ROOT) -> int:
    """Return 0 if every part went well, 1 if one did not, 2 for wrong words."""
    if list(words) == ["--table"]:
        again.print_table(again.load(root, TABLE))
        return 0
    names, numbers = list(words), {"--seeds": SEEDS, "--minutes": MINUTES}
    while len(names) > 1 and names[0] in numbers and names[1].isdigit():
        numbers[names[0]], names = int(names[1]), names[2:]
    known = parts(int(time.time()) // 86_400, numbers["--seeds"], numbers["--minutes"])
    if unknown := [name for name in names if name not in known]:
        print(f"{USAGE}\nunknown: {' '.join(unknown)}", file=sys.stderr)
        return 2
    again.keep_cut_pass(root)
    found = []
    for name in names or known:
        command, variables = known[name]
        print(f"{name}: {' '.join(command)}", flush=True)
        found.append(again.run_once(command, 0, root, table=TABLE, variables=variables))
    again.print_table(found)
    return 1 if any(one["result"] for one in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
