"""``synrepl tls init``: one command, and what to do with what it has made."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from synrepl.cli import main
from synrepl.config import Settings

NOW = 1_800_000_000.0


def test_the_printed_settings_are_those_of_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are: it starts with them, and asks for keys at every address."""
    monkeypatch.setattr("time.time", lambda: NOW)
    folder = tmp_path / "tls"
    shown = CliRunner().invoke(main, ["tls", "init", str(folder), "--name", "berlin"])
    again = CliRunner().invoke(main, ["tls", "init", str(folder), "--json"])

    assert (shown.exit_code, again.exit_code) == (0, 0)
    assert "valid until 2028-01-15, then repeat this command" in shown.stdout
    assert f"a new CA, which every daemon and client needs: {folder / 'ca.pem'}" in shown.stdout
    found = json.loads(again.stdout)
    assert found["names"][0] == "berlin"
    assert found["until"] == NOW + 365 * 86_400
    assert not found["new_ca"]
    assert all(f"    {name}: {value}" in shown.stdout for name, value in found["settings"].items())
    (tmp_path / "secret").write_text("hush")
    (tmp_path / "secret").chmod(0o600)
    built = Settings.build(
        {**found["settings"], "secret_file": str(tmp_path / "secret"), "dialect": "native"}
    )
    assert built.listen == (found["settings"]["listen"],)


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    answers = [
        CliRunner().invoke(main, ["tls", "init", str(tmp_path), *words])
        for words in (["--name", "a b"], ["--days", "0"])
    ]

    assert [answer.exit_code for answer in answers] == [1, 2]
    assert "is no name of a host" in str(answers[0].stderr)
