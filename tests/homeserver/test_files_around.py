"""``inspect --files``: what people have in hand beside Synapse's own files."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from synrepl.cli import main
from tests.homeserver.test_files import PARTLY, UNWELL, WHOLE, run
from tests.homeserver.test_work import one

AROUND = [
    (
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"log.yaml": "version: 1"}},
        "a manifest of Kubernetes (ConfigMap), with log.yaml in it",
    ),
    ({"services": {"synapse": {}}}, "a file of Docker Compose"),
    ({"replicaCount": 1, "image": {"tag": "v1"}}, "values of a Helm chart"),
    ({"synapse": {"workers": {"pusher": {"enabled": True}}}, "redis": {}}, "values of a Helm chart"),
    ({"matrix_domain": "x", "matrix_synapse_workers_enabled": True}, "variables of Ansible"),
    ({"synapse_server_name": "x", "synapse_workers": []}, "variables of Ansible"),
]


@pytest.mark.parametrize(("content", "kind"), AROUND)
def test_a_file_from_which_others_are_made(tmp_path: Path, content: Any, kind: str) -> None:
    """Read as Synapse's, it says nothing; and then nothing was wrong."""
    (tmp_path / "hs.yaml").write_text(json.dumps(WHOLE))
    (tmp_path / "around.yaml").write_text(json.dumps(content))
    found = run("--homeserver", tmp_path / "hs.yaml", "--worker", tmp_path / "around.yaml", code=PARTLY)
    [why] = [one["why"] for one in found["unseen"] if one["what"].endswith("around.yaml")]
    assert kind in why

    assert kind in refusal(tmp_path / "around.yaml")


@pytest.mark.parametrize(
    "content", [{"report_stats": False}, {"version": 1, "handlers": {}}, {"email": {}}, {"synapse_x": 1}]
)
def test_a_file_of_other_settings_is_synapses(tmp_path: Path, content: Any) -> None:
    (tmp_path / "hs.yaml").write_text(json.dumps({**WHOLE, "listeners": []}))
    (tmp_path / "more.yaml").write_text(json.dumps(content))
    found = run("--homeserver", tmp_path / "hs.yaml", "--homeserver", tmp_path / "more.yaml", code=UNWELL)
    assert [] == [one for one in found["unseen"] if one["what"].endswith("more.yaml")]


def refusal(path: Path) -> str:
    """What is said of a file that cannot be read."""
    result = CliRunner().invoke(main, ["inspect", "--files", "--homeserver", str(path)])
    assert 2 == result.exit_code
    return result.output


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("all.yaml", "server_name: x\n---\nworker_name: w1\n", "several documents, and the next begins at"),
        ("s.nix", "{ config, ... }: {\n  enable = true;\n}\n", "systemctl cat matrix-synapse"),
        ("page.md", "# x\n```yaml\na: 1\n```\n", "give each block as a file of its own"),
        ("w.yaml", "a:\n- b: 1\n\tc: 1\n", "spaces in place of tabs"),
    ],
)
def test_what_is_no_yaml_of_synapse(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    assert said in refusal(tmp_path / name)


def test_files_of_several_workers_in_one(tmp_path: Path) -> None:
    """As ``cat workers/*`` gives them (element-hq/synapse#14539); Synapse would start the last."""
    (tmp_path / "hs.yaml").write_text(json.dumps(WHOLE))
    each = "worker_app: synapse.app.generic_worker\nworker_name: w{}\nworker_listeners: []\n"
    (tmp_path / "all.yaml").write_text("".join(each.format(number) for number in range(3)))
    found = run("--homeserver", tmp_path / "hs.yaml", "--worker", tmp_path / "all.yaml", code=UNWELL)

    why = one(found, "replaced_key")["why"]
    assert "`worker_name` is there 3 times" in why
    assert "the last alone counts" in why
    assert "a file of its own" in one(found, "replaced_key")["remedy"]
