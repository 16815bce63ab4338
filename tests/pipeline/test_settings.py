"""The setting of the pipeline, from a flag, and from a file."""

from pathlib import Path

from synrepl.config import Settings
from synrepl.pipeline.settings import snapshot_of


def test_a_snapshot_of_a_flag_and_of_a_file(tmp_path: Path) -> None:
    """They mean the same; without one nothing is restored."""
    path = tmp_path / "config.yaml"
    path.write_text("snapshot: /srv/snapshot")

    assert snapshot_of(Settings.build()) is None
    assert "/srv/snapshot" == snapshot_of(Settings.build({"snapshot": "/srv/snapshot"}))
    assert "/srv/snapshot" == snapshot_of(Settings.build(file=path))
