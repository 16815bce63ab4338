"""The doctor behind a pooler, which gives sessions to others."""

import json

from click.testing import CliRunner

from synrepl.cli import main
from tests.postgres import new_database
from tests.storage.test_pooler import SharingPooler


def test_the_doctor_looks_through_a_pooler_that_shares_sessions() -> None:
    """It takes no lock, and changes no setting; only --fix needs a session of its own."""
    pooler = SharingPooler(new_database())

    result = CliRunner().invoke(main, ["doctor", "--database", pooler.url, "--json"])
    pooler.stop()

    assert ["nothing_known"] == [one["kind"] for one in json.loads(result.stdout)["complaints"]]
