"""Makes the manual's pictures of a report: runs the pipeline on a recorded day, and takes screenshots.

Writes docs/images/report-*.png. Needs a Chromium: on the PATH, or named by SYNREPL_CHROMIUM.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.chromium import Chromium, find_chromium  # noqa: E402  # after the path
from tests.pipeline.archives import BEGAN_MS, DAY_MS  # noqa: E402
from tests.pipeline.recorded import fill_day  # noqa: E402
from tests.service.processes import Daemon  # noqa: E402

IMAGES: Final = ROOT / "docs" / "images"
VIEWS: Final = {
    "report-day": (1200, 1500, False),
    "report-day-dark": (1200, 1500, True),
    "report-day-phone": (390, 1200, False),
}


def job(*words: str) -> None:
    """Run a command of the pipeline, and show it with its output."""
    print("$ synrepl pipeline", *words, flush=True)
    subprocess.run([sys.executable, "-m", "synrepl", "pipeline", *words], check=True, cwd=ROOT)


def main() -> int:
    """Archive, compact, audit and report the day, and write its pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=int, default=60_000)
    parser.add_argument("--to", type=Path, default=IMAGES, metavar="DIR")
    options = parser.parse_args()
    program = find_chromium()
    if program is None:
        print(
            "no Chromium was found: install it (Debian: apt-get install chromium), or set SYNREPL_CHROMIUM",
            file=sys.stderr,
        )
        return 1
    with tempfile.TemporaryDirectory(prefix="synrepl-day-") as name:
        folder = Path(name)
        fill_day(folder / "synrepl.db", options.facts, began_ms=BEGAN_MS - DAY_MS)
        archive, snapshot, out = (str(folder / part) for part in ("archive", "snapshot", "report"))
        with Daemon(folder, options=("--retain-seconds", "999999999")) as daemon:
            job("archive", "--url", daemon.url, "--archive", archive)
            job("compact", "--archive", archive, "--snapshot", snapshot)
            job("audit", "--archive", archive, "--url", daemon.url)
            job("report", "--archive", archive, "--out", out, "--url", daemon.url)
        with Chromium(program) as browser:
            for view, (width, height, is_dark) in VIEWS.items():
                tab = browser.tab(width, height, is_dark=is_dark)
                tab.open((folder / "report" / "index.html").as_uri())
                tab.photograph(options.to / f"{view}.png", at_most=height)
                tab.close()
                print(f"wrote {view}.png", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
