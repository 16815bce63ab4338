"""Files of Synapse that are in manifests of Kubernetes and in files of Docker Compose."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from synrepl.errors import ConfigError
from synrepl.homeserver.manifests import load_parts
from tests.homeserver.test_files import PARTLY, WELL, run

KEYS = ("server_name", "worker_app", "worker_name", "listeners")
SHARED = """
server_name: hs.test
listeners:
  - {port: 8008, type: http, bind_addresses: [0.0.0.0], resources: [{names: [client, federation]}]}
  - {port: 9093, type: http, bind_addresses: [0.0.0.0], resources: [{names: [replication]}]}
redis: {enabled: true, host: redis}
instance_map: {main: {host: synapse, port: 9093}}
federation_sender_instances: [sender1]
database: {name: psycopg2, args: {host: db}}
"""
WORKER = "worker_app: synapse.app.generic_worker\nworker_name: sender1\n"
LOG = "version: 1\nhandlers: {}\n"


def config_map(name: str, data: Any, kind: str = "ConfigMap", key: str = "data") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, key: data}


MAIN = config_map("synapse", {"homeserver.yaml": SHARED, "log.yaml": LOG, "start.sh": "server_name: x"})
SENDER = config_map("sender", {"worker.yaml": WORKER})
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1}}


def write(folder: Path, *documents: Any) -> Path:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


@pytest.mark.parametrize(
    ("documents", "names"),
    [
        ([MAIN], ["synapse/homeserver.yaml"]),
        ([MAIN, DEPLOYMENT, None, SENDER], ["synapse/homeserver.yaml", "sender/worker.yaml"]),
        ([{"apiVersion": "v1", "kind": "List", "items": [SENDER, 1]}], ["sender/worker.yaml"]),
        ([config_map("s", {"hs.yaml": SHARED}, "Secret", "stringData")], ["s/hs.yaml"]),
        ([config_map("s", {"hs.yml": base64.b64encode(SHARED.encode()).decode()}, "Secret")], ["s/hs.yml"]),
        ([{"services": {"a": {}}, "configs": {"hs": {"content": SHARED}, "other": {"file": "x"}}}], ["hs"]),
        (
            [{"services": {"a": {"volumes": ["x:/y", {"target": "/data/hs.yaml", "content": SHARED}]}}}],
            ["hs.yaml"],
        ),
    ],
)
def test_files_in_a_file_are_read(tmp_path: Path, documents: list[Any], names: list[str]) -> None:
    """Each by its place: of several manifests, more than one may call its file worker.yaml."""
    path = write(tmp_path, *documents)

    assert [f"{path}: {name}" for name in names] == [str(place) for place, _ in load_parts(path, KEYS)]


@pytest.mark.parametrize(
    "document",
    [
        DEPLOYMENT,
        config_map("s", {"hs.yaml": "not base64!"}, "Secret"),
        config_map("s", 1),
        config_map("s", {"hs.yaml": 1, "log.yaml": LOG}),
        {"services": {"a": {"volumes": 1}, "b": 2}, "configs": {"x": {"content": LOG}}},
        {"server_name": "hs.test", "email": {"content": "apiVersion"}},
    ],
)
def test_a_file_without_others_is_one_itself(tmp_path: Path, document: Any) -> None:
    path = write(tmp_path, document)

    assert [(path, [document])] == load_parts(path, KEYS)


def test_manifests_are_a_whole_homeserver(tmp_path: Path) -> None:
    """As a chart or a folder of manifests has it: the processes are told, and nothing is left unread."""
    found = run("--homeserver", write(tmp_path, MAIN, SENDER, DEPLOYMENT), code=WELL)

    assert ["master", "sender1"] == [one["name"] for one in found["processes"]]
    assert found["processes"][1]["file"].endswith("all.yaml: sender/worker.yaml")
    assert [] == found["findings"]


def test_a_folder_of_manifests_is_a_homeserver(tmp_path: Path) -> None:
    """Those of containers and networks hold no files, and are no files of Synapse's."""
    for name, one in (("a", MAIN), ("b", SENDER), ("c", DEPLOYMENT)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(one))

    found = run("--homeserver", tmp_path, code=WELL)

    assert ["master", "sender1"] == [one["name"] for one in found["processes"]]


def test_manifests_without_settings_are_told(tmp_path: Path) -> None:
    """Several in one file too, which is none of Synapse's."""
    (tmp_path / "hs.yaml").write_text(SHARED.replace("federation_sender_instances: [sender1]", ""))
    path = write(tmp_path, DEPLOYMENT, config_map("x", {"log.yaml": LOG}))

    found = run("--homeserver", tmp_path / "hs.yaml", "--worker", path, code=PARTLY)

    assert "it is a manifest of Kubernetes (Deployment, ConfigMap)" in str(found["unseen"])


def test_what_is_wrong_in_a_file_in_a_file_is_told_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, config_map("synapse", {"homeserver.yaml": "server_name: x\n  listeners: []\n"}))

    with pytest.raises(ConfigError, match=r"all.yaml: synapse/homeserver.yaml, line 2: not YAML"):
        load_parts(path, KEYS)
