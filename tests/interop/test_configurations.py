"""Real releases read 500 configurations; tests/homeserver/test_configurations.py has what they say."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings

from tests.homeserver.configurations import (
    COUNT,
    RELEASES,
    SEED,
    Configuration,
    configurations,
    read_answers,
    write_answers,
)

PROGRAM = Path(__file__).parent / "peers/configuration.py"
PEERS = Path(os.environ.get("SYNREPL_PEERS", Path.home() / ".cache/synrepl-peers"))
SIGNING_KEY = "ed25519 a_test yGgp5Mnm1CkzZeFV5cPqMgWQyFHLTjRPJ0v0C3vw+h8"
IS_NAMED = {"1.66.0": "current", "1.157.1": "silent", "1.163.2": "newest"}


def python_of(release: str) -> Path:
    """The Python of this release's environment."""
    return PEERS / f"synapse-{IS_NAMED.get(release, release)}/bin/python"


class Release:
    """One release that answers."""

    def __init__(self, release: str) -> None:
        self._process = subprocess.Popen(
            [str(python_of(release)), str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert {"event": "started"} == self.answer()

    def ask(self, paths: list[str]) -> None:
        """Ask how it reads these paths."""
        assert self._process.stdin is not None
        print(json.dumps(paths), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """The next answer."""
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        found.pop("text", "")  # theirs
        return found

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@pytest.fixture(scope="module")
def releases() -> Iterator[dict[str, Release]]:
    """All of them: `scripts/interop configurations` makes their environments."""
    if missing := [one for one in RELEASES if not python_of(one).exists()]:
        pytest.skip(f"no Synapse {', '.join(missing)} below {PEERS}: run scripts/interop configurations")
    found = {one: Release(one) for one in RELEASES}
    yield found
    for one in found.values():
        one.close()


def ask(
    configuration: Configuration, releases: dict[str, Release], folder: Path
) -> dict[str, dict[str, Any]]:
    """What each release says of each process."""
    folder.mkdir()
    (folder / "signing.key").write_text(SIGNING_KEY)
    (folder / "media").mkdir()
    base = {
        "report_stats": False,
        "signing_key_path": str(folder / "signing.key"),
        "macaroon_secret_key": "m",
        "form_secret": "f",
        "trusted_key_servers": [],
        "suppress_key_server_warning": True,
        "media_store_path": str(folder / "media"),
        "database": {"name": "sqlite3", "args": {"database": ":memory:"}},
    }
    configuration.write(folder, base)
    for release in releases.values():
        for own in configuration.own:
            release.ask(configuration.paths(own, folder))
    return {name: {own: release.answer() for own in configuration.own} for name, release in releases.items()}


def draw() -> list[Configuration]:
    """The first configurations of the kept seed, each once."""
    drawn: list[Configuration] = []

    @seed(SEED)
    @hypothesis_settings(
        max_examples=2 * COUNT,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(configurations())
    def collect(one: Configuration) -> None:
        if one not in drawn:
            drawn.append(one)

    collect()
    return drawn[:COUNT]


def test_real_releases_say_what_is_kept(releases: dict[str, Release], tmp_path: Path) -> None:
    """With SYNREPL_RECORD=1 it is recorded anew."""
    if os.environ.get("SYNREPL_RECORD"):
        found = [(one, ask(one, releases, tmp_path / str(at))) for at, one in enumerate(draw())]
        write_answers(found)
        return
    for at, (one, kept) in enumerate(read_answers()):
        assert kept == ask(one, releases, tmp_path / str(at))
