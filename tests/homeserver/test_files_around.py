"""``inspect --files``: what people have in hand beside Synapse's own files."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from synrepl.cli import main
from synrepl.config.config_files import program_in, template_in
from tests.homeserver.test_files import PARTLY, UNWELL, WELL, WHOLE, run
from tests.homeserver.test_work import one

AROUND = [
    (
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"log.yaml": "version: 1"}},
        "a manifest of Kubernetes (ConfigMap), with log.yaml in it",
    ),
    ({"services": {"synapse": {}}}, "a file of Docker Compose"),
    ({"replicaCount": 1, "image": {"tag": "v1"}}, "values of a Helm chart"),
    ({"synapse": {"workers": {"pusher": {"enabled": True}}}, "redis": {}}, "values of a Helm chart"),
    ({"serverName": "x", "workers": {}, "extraConfig": {}}, "values of a Helm chart"),
    ({"apiVersion": "v2", "name": "matrix-synapse", "version": "1.0.0"}, "the description of a Helm chart"),
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
        ("s.pp", "# x\nclass profiles::synapse {\n  file { 'a': }\n}\n", "a manifest of Puppet"),
        ("hs.erb", "<%= x %>\nserver_name: <%= y %>: z\n", "ERB or EPP"),
        ("r.rb", "template '/etc/hs.yaml' do\n  source 'a'\nend\n", "a recipe of Chef"),
        ("w.py", "import os\nx = {'a': 1}\n", "a program in Python"),
        ("n.conf", "upstream w {\n  server a:1;\n}\n", "a configuration of a proxy"),
        ("h.cfg", "frontend https\n  bind :443\n", "a configuration of a proxy"),
        ("Caddyfile", "matrix.example.org {\n  reverse_proxy a:1\n}\n", "a configuration of a proxy"),
        ("a.conf", "<VirtualHost *:443>\n  ServerName x\n</VirtualHost>\n", "a configuration of a proxy"),
    ],
)
def test_what_is_no_yaml_of_synapse(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    assert said in refusal(tmp_path / name)


HELM = [
    "{{- if .Values.workers }}\napiVersion: v1\nkind: ConfigMap\n{{- end }}\n",
    "server_name: {{ .Values.serverName | quote }}\n    {{- toYaml .Values.extra | nindent 4 }}\n",
    'metadata:\n  labels:\n{{ include "matrix.labels" . | nindent 4}}\n',
    "worker_name: x\n{{- $root := .root -}}\n{{- with $.Values.a }}\n{{- end }}\n",
    # YAML, but what it has of Synapse is written elsewhere.
    'apiVersion: v1\nkind: ConfigMap\ndata:\n  homeserver.yaml: |\n    {{ include "homeserver.yaml" . }}\n',
    'apiVersion: v1\nkind: Secret\nstringData:\n  hs.yaml: |\n    {{- tpl (.Files.Get "hs.yaml") . }}\n',
]


@pytest.mark.parametrize("text", HELM)
def test_a_template_of_helm_is_to_be_rendered(tmp_path: Path, text: str) -> None:
    """What its statements would write is not guessed."""
    (tmp_path / "configmap.yaml").write_text(text)

    said = refusal(tmp_path / "configmap.yaml")

    assert "a template of Helm that was not rendered: give what `helm template NAME CHART" in said
    assert "expected" not in said


@pytest.mark.parametrize(
    ("content", "how"),
    [
        ({"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease"}, "`helm template NAME CHART"),
        ({"apiVersion": "kustomize.config.k8s.io/v1", "kind": "Kustomization"}, "`kubectl kustomize FOLDER`"),
        ({"apiVersion": "bitnami.com/v1alpha1", "kind": "SealedSecret"}, "`kubectl get secret NAME -o yaml`"),
        ({"services": {"synapse": {}}}, "`docker compose cp SERVICE:/data FOLDER`"),
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, "with server_name in one; see"),
        ({"passFile": "passkey.pem", "bridge": {}}, "this is not the configuration of a homeserver"),
    ],
)
def test_what_makes_the_files_is_told(tmp_path: Path, content: Any, how: str) -> None:
    (tmp_path / "around.yaml").write_text(json.dumps(content))

    assert how in refusal(tmp_path / "around.yaml")


FACTOR = "SYNAPSE_CACHE_FACTOR"


@pytest.mark.parametrize(
    ("content", "is_told"),
    [
        ({"services": {"synapse": {"environment": {FACTOR: 2}}}}, True),
        ({"services": {"synapse": {"environment": ["TZ=UTC", f"{FACTOR}=2"]}}}, True),
        ({"apiVersion": "v1", "kind": "Pod", "spec": {"env": [{"name": FACTOR, "value": "2"}]}}, True),
        # Those of one cache still count.
        ({"services": {"synapse": {"environment": {f"{FACTOR}_GET_USERS_IN_ROOM": 2}}}}, False),
        ({"services": {"synapse": {"environment": [f"{FACTOR}_GET_USERS_IN_ROOM=2"]}}}, False),
    ],
)
def test_a_factor_in_the_environment_that_counts_no_more(tmp_path: Path, content: Any, is_told: bool) -> None:
    """1.59 takes it as the default of global_factor, and 1.60 and newer a half."""
    (tmp_path / "around.yaml").write_text(json.dumps(content))

    assert is_told == (f"ignores its {FACTOR} since 1.60" in refusal(tmp_path / "around.yaml"))


def test_values_of_a_chart_are_to_be_rendered(tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: matrix-synapse\nversion: 1.0.0\n")
    (tmp_path / "values.yaml").write_text("replicaCount: 1\nimage: {tag: v1}\n")

    assert "of a chart what `helm template NAME CHART -f VALUES` writes" in refusal(tmp_path)


def test_a_template_of_jinja(tmp_path: Path) -> None:
    (tmp_path / "hs.yaml.j2").write_text("server_name: {{ domain }}\n{% if x %}\nredis:\n{% endif %}\n")

    assert "a template of Jinja, as Ansible has them: give the file that was made" in refusal(
        tmp_path / "hs.yaml.j2"
    )


def test_marks_that_are_whole_values_are_read(tmp_path: Path) -> None:
    """A file of Synapse with values of a chart in it is read but for these."""
    text = json.dumps({**WHOLE, "redis": {"enabled": True, "host": "HOST"}})
    (tmp_path / "hs.yaml").write_text(text.replace('"HOST"', "{{ .Values.redis.host }}") + "\n# content\n")
    found = run("--homeserver", tmp_path / "hs.yaml", code=PARTLY)

    assert any(".Values.redis.host" in one["why"] for one in found["unseen"])


def test_a_file_of_a_folder_with_another_ending(tmp_path: Path) -> None:
    """Factors of caches had no effect: they were in conf.d/caching.yml (matrix-org/synapse#8748)."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (tmp_path / "hs.yaml").write_text(json.dumps(WHOLE))
    (folder / "caching.yml").write_text("caches: {global_factor: 4.0}\n")
    assert "rename caching.yml" in refusal(folder)

    (folder / "other.yaml").write_text("event_cache_size: 20K\n")
    found = run("--homeserver", tmp_path / "hs.yaml", "--homeserver", folder, code=WELL)
    [ignored] = [one for one in found["notes"] if one["kind"] == "ignored_file"]
    assert "caching.yml ends with .yml" in ignored["why"]


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


DOCKERFILE = (
    "FROM matrixdotorg/synapse-workers\nENTRYPOINT \\\n  SYNAPSE_WORKER_TYPES=pusher \\\n  /start.py\n"
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (DOCKERFILE, ["Dockerfile", "/conf/workers"]),
        (
            "#!/bin/bash\ncat << EOF > w.yaml\nworker_app: a\nworker_name: w$i\nEOF\ndone\n",
            ["script: run it"],
        ),
        ('resource "local_file" "hs" {\n  content = <<EOT\n  server_name: x\nEOT\n}\n', ["HCL"]),
        ("auto_auth {\n}\ntemplate {\n  contents = <<EOH\n  a: {{ .Data.x }}\nEOH\n}\n", ["Vault's agent"]),
        ("[Unit]\nDescription=Synapse %i\n[Service]\nExecStart=python -m a --config-path=b\n", ["ExecStart"]),
        ("docker run -d \\\n  -e SYNAPSE_WORKER_TYPES=pusher \\\n  image\n", ["container", "/conf/workers"]),
        ("# of Compose\nSYNAPSE_SERVER_NAME=x\nSYNAPSE_WORKER_TYPES=pusher:2\n", ["an environment"]),
        ('[global]\nserver_name = "x"\nport = 1\n', ["INI or TOML"]),
        ("[program:synapse_main]\ncommand=python -m a --config-path=b\n", ["INI or TOML"]),
        ("version: 2\nglobal: {server_name: x}\n", ["Dendrite"]),
        ("matrix_domain: x\nmatrix_synapse_workers_enabled: true\n", ["Ansible", "on the server"]),
        ('a: {{ tmpl.Exec "hs" | base64.Encode }}\n{{ define "hs" }}\nb: 1\n{{ end }}\n', ["gomplate"]),
    ],
)
def test_programs_in_which_settings_are_written(tmp_path: Path, content: str, said: list[str]) -> None:
    """They are named by what they are, with what to give, and not by the first thing that is no YAML."""
    (tmp_path / "given").write_text(content)
    result = CliRunner().invoke(main, ["inspect", "--files", "--homeserver", str(tmp_path / "given")])

    assert result.exit_code == 2
    assert all(one in result.output for one in said), result.output


def test_workers_that_an_image_makes(tmp_path: Path) -> None:
    environment = {"SYNAPSE_WORKER_TYPES": "pusher, event_persister:2"}
    services = {"synapse": {"image": "matrixdotorg/synapse-workers", "environment": environment}}
    (tmp_path / "compose.yaml").write_text(json.dumps({"services": services}))
    result = CliRunner().invoke(main, ["inspect", "--files", "--homeserver", str(tmp_path / "compose.yaml")])

    assert result.exit_code == 2
    assert "/conf/workers" in result.output


@pytest.mark.parametrize(
    "text", [b"{{" + b" " * 300_000, b"{{ " * 100_000, b"{{" + b"secret " * 40_000, b"# \n" * 300_000]
)
def test_no_text_takes_long_to_be_told_apart(text: bytes) -> None:
    """A search that tries all ways to divide such a text would not end."""
    assert template_in(text) == program_in(text) == ""
