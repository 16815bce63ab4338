"""Which daemon a command of replicas asks, and what it shows of a refusal."""

import json
import ssl
from pathlib import Path

import pytest

from synrepl.http_api.request_errors import HttpError
from synrepl.http_client import BlockingClient
from tests.certificates import Authority
from tests.cli.test_targets import BERLIN, json_server, run


def test_a_named_ca_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option or by the variable; without both the message names the option."""
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SYNREPL_URL", raising=False)
    with json_server(b'{"leases": []}', context) as port:
        url = f"https://localhost:{port}"
        unknown = run("leases", "--url", url)
        named = run("leases", "--url", url, "--ca-file", str(authority.ca_file))
        monkeypatch.setenv("SYNREPL_CA_FILE", str(authority.ca_file))
        of_variable = run("leases", "--url", url)
        unusable = run("leases", "--url", url, "--ca-file", str(key))
        missing = run("leases", "--url", url, "--ca-file", "/no/such")

    assert "name the CA to trust with --ca-file" in unknown.stderr
    assert [named.stdout, of_variable.stdout] == ["no leases\n"] * 2
    assert "must have certificates in PEM" in unusable.stderr
    assert "cannot read the CA file /no/such: No such file or directory" in missing.stderr


@pytest.mark.parametrize("has_secret", [False, True])
def test_a_refused_secret_names_the_option(has_secret: bool, tmp_path: Path) -> None:
    """The daemon speaks of HTTP headers, which nobody gives to a command."""
    secret = tmp_path / "secret"
    secret.write_text("old")
    refusal = {"error": "unauthorized", "message": "no key was sent: send Authorization: Bearer SECRET"}
    with json_server(json.dumps(refusal).encode(), status=401) as port:
        words = ["--url", f"http://localhost:{port}", *(["--secret-file", str(secret)] if has_secret else [])]
        failed = [run("promote", *words), run("leases", "add", "a", *words)]

    for one in failed:
        assert ("--secret-file" in one.stderr, "Authorization" in one.stderr) == (True, False)
        assert (f"the secret in {secret} is unknown" in one.stderr) is has_secret


def test_every_command_names_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a replica refuses: its answer says where the primary is."""

    def refuse(client: BlockingClient, *arguments: object) -> None:
        raise HttpError(503, "replica", "no", {"moved_to": "tcp:rome:9092 http://rome:9093"})

    monkeypatch.setattr(BlockingClient, "json", refuse)

    commands = (
        ("keys", "add", "laptop"),
        ("keys", "revoke", "laptop"),
    )
    for command in commands:
        result = run(*command, "--url", BERLIN)
        assert result.exit_code == 1
        assert "the primary is at tcp:rome:9092, http://rome:9093: use its --url" in result.output
