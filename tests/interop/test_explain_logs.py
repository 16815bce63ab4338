"""Whole DEBUG logs of real homeservers with workers: what `synrepl explain` makes of them.

Users do everything for ten minutes, while processes are restarted and killed, and Redis goes away. Of what
synapse.replication logs, at least 95 of 100 lines are recognized, and of its distinct messages as many.
SYNREPL_INTEROP_LOGS=FOLDER keeps the logs, to be read by a person.
"""

import json
import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from synrepl.homeserver.explanation.entries import entries
from synrepl.homeserver.explanation.messages import find_message
from synrepl.homeserver.explanation.pasted_lines import read_line
from tests.interop.drive import Driver, Driving
from tests.interop.harness import peer_python
from tests.interop.homeserver import LAYOUT_OF_CURRENT, MAIN, TWO_WORKERS, Homeserver, Layout
from tests.processes.loading import report

SECONDS: Final = float(os.environ.get("SYNREPL_INTEROP_SECONDS", "600"))

LOGGING: Final = {
    "version": 1,
    "formatters": {
        "precise": {
            "format": "%(asctime)s - %(name)s - %(lineno)d - %(levelname)s - %(request)s - %(message)s"
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "precise"}},
    "loggers": {"synapse.storage.SQL": {"level": "INFO"}},
    "root": {"level": "DEBUG", "handlers": ["console"]},
    "disable_existing_loggers": False,
}
"""As Synapse writes it by itself, but at DEBUG."""

LAYOUTS: Final = {"newest": TWO_WORKERS, "current": LAYOUT_OF_CURRENT}

pytestmark = pytest.mark.skipif(
    "logs" not in os.environ.get("SYNREPL_INTEROP", "").split(), reason="not asked for: it takes 10 minutes"
)


def write_logs(release: str, layout: Layout, folder: Path) -> list[Path]:
    """Run a homeserver with trouble for `SECONDS`; return the logs of its processes, one of each."""
    settings = folder / "log.json"
    settings.write_text(json.dumps(LOGGING))
    homeserver = Homeserver(
        release=release,
        layout=layout,
        shared={"log_config": str(settings)},
        own={name: {"worker_log_config": str(settings)} for name in layout.workers},
    )
    kept = [folder / f"{name}.log" for name in homeserver.processes]
    with homeserver:
        driver = Driver(homeserver)
        driver.prepare()
        until = time.monotonic() + SECONDS
        with Driving(driver, goes_on=True) as rounds:
            while time.monotonic() < until:
                for name in (*layout.workers, MAIN):
                    rounds.keep_going(SECONDS / 20)
                    homeserver.restart(name)
                rounds.keep_going(SECONDS / 20)
                homeserver.redis.kill()
                time.sleep(5)  # for what is said while it is away
                homeserver.redis.start()
                rounds.keep_going(SECONDS / 20)
                homeserver.processes[layout.workers[0]].kill()
                homeserver._start(layout.workers[0])
        for name, process in homeserver.processes.items():
            process.stop()
            shutil.copy(process.log_file, folder / f"{name}.log")
    return kept


@pytest.mark.parametrize("of", [*LAYOUTS])
def test_a_whole_log_is_explained(of: str, tmp_path: Path) -> None:
    """Nearly every line of synapse.replication is recognized."""
    assert peer_python(of).exists()
    folder = Path(os.environ.get("SYNREPL_INTEROP_LOGS", tmp_path)) / of
    folder.mkdir(parents=True, exist_ok=True)

    logs = write_logs(of, LAYOUTS[of], folder)

    lines: Counter[bool] = Counter()
    kinds: dict[str, bool] = {}
    for log in logs:
        with log.open(errors="replace") as file:
            for entry in entries(file):
                header, texts = read_line(entry.line)
                if header.logger.startswith("synapse.replication."):
                    found = any(find_message(text) for text in texts)
                    lines[found] += 1
                    # A message, whatever its values are.
                    kind = re.sub(r"\W*\w*\d\S*|'[^']*'", "#", f"{header.logger} {texts[0].text}")[:60]
                    kinds[kind] = kinds.get(kind, True) and found
    report(f"{of}: {lines[True]} of {lines.total()} lines, {sum(kinds.values())} of {len(kinds)} messages")
    assert lines[True] >= 0.95 * lines.total() > 0
    assert sum(kinds.values()) >= 0.95 * len(kinds)
