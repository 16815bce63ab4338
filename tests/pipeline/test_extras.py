"""Jobs where no extra is installed."""

from pathlib import Path
from typing import Final

from synrepl.pipeline.commands.jobs import pipeline
from tests.cli.test_extras import check_needed, run

NEED: Final = {
    "pipeline optimize --archive {folder}": "archive",
    "pipeline vacuum --archive {folder}": "archive",
    "pipeline history --archive {folder}": "archive",
    "pipeline compact --archive {folder} --snapshot {folder}/s": "archive",
    "pipeline tables --archive {folder} --out {folder}/t": "archive",
    "pipeline audit --archive {folder}": "archive",
    "pipeline report --archive {folder} --out {folder}/r": "archive",
    "pipeline audit --archive {folder} --engine spark": "spark",
}
"""Jobs that need an extra, and which."""


def test_a_job_without_its_extra_says_which_to_install(tmp_path: Path) -> None:
    """With a failure, and never with a traceback."""
    check_needed(NEED, tmp_path)


def test_every_job_can_be_imported_without_extras() -> None:
    """Its help needs none."""
    words = [["pipeline", name, "--help"] for name in pipeline.commands]

    assert [(0, True)] * len(words) == [(code, is_exit) for code, is_exit, _ in run(*words)]
