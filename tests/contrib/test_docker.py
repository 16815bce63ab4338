"""The image and the compose file: every file, port and option that they name exists.

No container is started here. `scripts/story` goes through the same deployment without containers.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from synrepl.cli.main import main
from synrepl.config import Settings
from tests.interop.harness import peer_python

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "contrib" / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DAEMONS = [name for name, service in SERVICES.items() if service["image"] == "synrepl"]
HOMESERVERS = [name for name, service in SERVICES.items() if "synapse" in service["image"]]
PORTS = {"postgres": {5432}, "redis": {6379}}


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, in order."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines() if line.strip()]


def test_the_image_runs_the_daemon_as_another_user() -> None:
    """With a health check, in two stages, of which only the second one remains."""
    found = dict(instructions())

    assert ["python:3.13-slim AS build", "python:3.13-slim"] == [
        what for name, what in instructions() if name == "FROM"
    ]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", found["USER"])
    assert "/livez" in found["HEALTHCHECK"]
    assert ["synrepl"] == json.loads(found["ENTRYPOINT"])
    context = click.Context(main)
    name, *options = json.loads(found["CMD"])
    command = main.get_command(context, name)
    assert command is not None
    assert set(options[::2]) <= {flag for parameter in command.params for flag in parameter.opts}


def test_the_image_copies_what_exists_and_what_is_not_ignored() -> None:
    admitted = [
        line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    for name, what in instructions():
        if name == "COPY":
            for path in what.split()[:-1]:
                assert (ROOT / path).exists(), path
                assert path in admitted
    wanted = set(re.search(r"synrepl\[(.*?)\]", DOCKERFILE)[1].split(","))  # type: ignore[index]
    assert wanted <= set(re.findall(r'^ +"(\w+)": ', (ROOT / "setup.py").read_text(), re.MULTILINE))


def mounted(service: dict[str, Any]) -> dict[str, Path]:
    """The files and directories of this checkout that a service sees, by their paths there."""
    found = {}
    for volume in service.get("volumes", []):
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[target] = DOCKER / source
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_files_and_volumes_of_each_service_exist(name: str) -> None:
    """Files, volumes, networks, secrets, other services and their health checks; images have a release."""
    service = SERVICES[name]
    for path in mounted(service).values():
        assert path.exists(), path
    volumes = {volume.split(":")[0] for volume in service.get("volumes", []) if volume[0] != "."}
    assert volumes <= set(COMPOSE["volumes"])
    assert set(service.get("networks", [])) <= set(COMPOSE["networks"])
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    for other, condition in service.get("depends_on", {}).items():
        if condition["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
    assert name in DAEMONS or re.search(r":v?\d+", service["image"])
    if "build" in service:
        context = (DOCKER / service["build"]["context"]).resolve()
        assert ROOT == context
        assert (context / service["build"]["dockerfile"]).exists()


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"postgres"}))
def test_a_service_is_confined(name: str) -> None:
    """The image of PostgreSQL begins as root, to give its directory to its user."""
    service = SERVICES[name]

    assert service["read_only"]
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert name in ("keys", *DAEMONS) or not service["user"].startswith("0")


def test_the_secrets_are_made_by_the_script(tmp_path: Path) -> None:
    """Once; a second run changes none."""
    shutil.copy(DOCKER / "secrets.sh", tmp_path)
    made = []
    for _ in range(2):
        subprocess.run(["/bin/sh", str(tmp_path / "secrets.sh")], check=True)
        made.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})

    assert made[0] == made[1]
    assert {f"./secrets/{name}" for name in made[0]} == {one["file"] for one in COMPOSE["secrets"].values()}
    assert all(re.fullmatch(r"[0-9a-f]{64}", text) for name, text in made[0].items() if name != "pgpass")
    assert 0o700 == (tmp_path / "secrets").stat().st_mode & 0o777


def settings_of(name: str, secret: Path) -> Settings:
    """The settings of a daemon, as it reads them, but for the place of the secret."""
    text = mounted(SERVICES[name])["/etc/synrepl/synrepl.yaml"].read_text()
    secret.with_suffix(".yaml").write_text(text.replace("/run/secrets/replication", str(secret)))
    return Settings.build(file=secret.with_suffix(".yaml"))


def listening(name: str, secret: Path) -> set[int]:
    """The ports at which a service listens."""
    if name in PORTS:
        return PORTS[name]
    if name in DAEMONS:
        built = settings_of(name, secret)
        return {int(one.split(":")[1]) for one in (*built.listen, built.http)}
    file = "homeserver" if name == "synapse" else name
    config = yaml.safe_load((DOCKER / "synapse" / f"{file}.yaml").read_text())
    return {one["port"] for one in config.get("listeners", config.get("worker_listeners"))}


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_starts_with_its_settings_and_finds_the_others(name: str, tmp_path: Path) -> None:
    """The settings are accepted without a warning of an open port, and each address is that of a service."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a" * 64)

    built: Any = settings_of(name, secret)  # with the settings of all rooms

    assert () == built.warnings
    assert built.keyring().is_required
    addresses = [(str(built.advertise), built.listen[0].split(":")[1])]
    text = (DOCKER / f"{name}.yaml").read_text()
    urls = [*built.instance_map.values(), *re.findall(r"^redis: (\S+)", text, re.MULTILINE)]
    addresses += [(str(urlsplit(url).hostname), str(urlsplit(url).port)) for url in urls]
    if built.upstream:
        _, host, port = built.upstream[0].split(":")
        addresses.append((host, port))
    for host, port in addresses:
        assert int(port) in listening(host, secret), (host, port)
    assert built.database.startswith(f"sqlite:{_volume(name)}/")


def _volume(name: str) -> str:
    """The directory of the daemon's own volume."""
    [target] = [volume.split(":")[1] for volume in SERVICES[name]["volumes"] if volume.startswith(f"{name}:")]
    return str(target)


def test_the_homeserver_and_the_daemons_agree() -> None:
    homeserver = yaml.safe_load((DOCKER / "synapse" / "homeserver.yaml").read_text())
    for name in DAEMONS:
        daemon = yaml.safe_load((DOCKER / f"{name}.yaml").read_text())
        assert homeserver["instance_map"] == daemon["instance_map"]
        assert daemon.get("server_name", homeserver["server_name"]) == homeserver["server_name"]
    assert set(homeserver["stream_writers"].values()) <= set(homeserver["instance_map"])


def test_the_step_before_the_homeserver_fits_the_others(tmp_path: Path) -> None:
    """It sees what the homeserver sees, is confined alike, and runs before it."""
    added = yaml.safe_load((DOCKER / "before-start.yaml").read_text())["services"]
    step, homeserver = added["before-start"], SERVICES["synapse"]
    assert {"before-start": {"condition": "service_completed_successfully"}} == added["synapse"]["depends_on"]
    for name in ("user", "read_only", "cap_drop", "security_opt"):
        assert homeserver[name] == step[name]
    assert {one.split(":")[1] for one in homeserver["volumes"]} == {
        one.split(":")[1] for one in step["volumes"]
    }
    assert set(step["depends_on"]) <= set(SERVICES)
    assert set(step["networks"]) <= set(SERVICES["postgres"]["networks"])
    assert SERVICES["primary"]["build"] == step["build"]
    name, *arguments = step["command"]
    (tmp_path / "homeserver.yaml").touch()
    command = main.get_command(click.Context(main), name)
    assert command is not None

    given = command.make_context(name, [one.replace("/config", str(tmp_path)) for one in arguments]).params

    assert (True, True, 60) == (given["before_start"], given["applies"], given["wait"])


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker on this machine")
def test_compose_accepts_the_file() -> None:
    """It needs no daemon for that."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose here")
    done = subprocess.run(
        ["docker", "compose", "--file", str(DOCKER / "compose.yaml"), "config", "--quiet"],
        capture_output=True,
        text=True,
    )

    assert (0, "") == (done.returncode, done.stderr)


LOAD = """
import sys
from synapse.config.homeserver import HomeServerConfig
HomeServerConfig.load_config("synapse", [part for path in sys.argv[1:] for part in ("--config-path", path)])
"""


@pytest.mark.skipif(not peer_python("newest").exists(), reason="the newest Synapse is not on this machine")
@pytest.mark.parametrize("files", [("homeserver",), ("homeserver", "worker1")])
def test_synapse_accepts_its_settings(files: tuple[str, ...], tmp_path: Path) -> None:
    """With the secrets and the key at another place."""
    shutil.copy(DOCKER / "secrets.sh", tmp_path)
    subprocess.run(["/bin/sh", str(tmp_path / "secrets.sh")], check=True)
    (tmp_path / "signing.key").write_text(f"ed25519 a_test {'A' * 43}\n")
    paths = []
    for name in files:
        text = (DOCKER / "synapse" / f"{name}.yaml").read_text()
        text = text.replace("/run/secrets", f"{tmp_path}/secrets").replace("/data", str(tmp_path))
        (tmp_path / f"{name}.yaml").write_text(text)
        paths.append(str(tmp_path / f"{name}.yaml"))

    done = subprocess.run(
        [str(peer_python("newest")), "-c", LOAD, *paths],
        capture_output=True,
        text=True,
        timeout=120,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )

    assert 0 == done.returncode, done.stderr
