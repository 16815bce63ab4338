"""The settings of replicas."""

import socket
from pathlib import Path
from typing import Any

import pytest
from twisted.python.usage import UsageError

from synrepl.config import Settings
from synrepl.errors import ConfigError
from synrepl.replicas.settings import CopySettings, parse_upstream
from tests.service.test_config import check_private, parsed, written

VALUES: list[tuple[str, str, Any, Any]] = [
    ("lease_seconds", "60", 60, 60.0),
    ("lease_bytes", "2GiB", 2 * 1024**3, 2 * 1024**3),
    ("upstream", "tcp:primary:9092", "tcp:primary:9092", ("tcp:primary:9092",)),
    ("upstream", "http://primary:9093/", ["http://primary:9093"], ("http://primary:9093",)),
    ("replica_name", "r1", "r1", "r1"),
    ("stale_seconds", "5", 5, 5.0),
    ("heartbeat_seconds", "2", 2, 2.0),
]


@pytest.mark.parametrize(("name", "flag", "in_file", "value"), VALUES)
def test_a_setting_can_be_given_as_a_flag_and_in_a_file(
    name: str, flag: str, in_file: Any, value: Any, tmp_path: Path
) -> None:
    """The same names, the same meaning."""
    path = written(tmp_path, **{name: in_file})

    assert getattr(parsed(f"--{name.replace('_', '-')}", flag), name) == value
    assert getattr(parsed("--config", str(path)), name) == value


def test_the_filter_of_a_replica_is_read(tmp_path: Path) -> None:
    """Streams and writers, in any order; switches are off unless said."""
    path = written(
        tmp_path, upstream="tcp:p:1", upstream_streams=["b", "a"], upstream_writers="w", anonymous=True
    )

    built: Any = parsed("--config", str(path))
    flags: Any = parsed("--upstream", "tcp:p:1", "--upstream-streams", "b,a", "--resync-on-fork")

    assert (("a", "b"), ("w",), True) == (built.upstream_streams, built.upstream_writers, built.anonymous)
    assert (("a", "b"), None, True) == (flags.upstream_streams, flags.upstream_writers, flags.resync_on_fork)


def test_the_defaults_are_those_of_the_contract() -> None:
    """Outside programs rely on them."""
    built: Any = Settings.build()
    assert built.lease_bytes == 1024**3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--upstream", "primary"], "--upstream must be a Twisted client endpoint string"),
        (["--upstream", "http://ada:secret@primary:9093"], "--upstream contains a user name"),
        (["--upstream-streams", "events"], "need --upstream"),
        (["--lease-seconds", "-1"], "number of seconds above 0"),
        (["--lease-bytes", "1GB"], "number of bytes above 0"),
        (
            ["--upstream", "tcp:rome:9092", "--upstream", "tcp:rome:9092"],
            "--upstream has an address twice: tcp:rome:9092",
        ),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(arguments: list[str], said: str) -> None:
    """With the name of the setting, and what would make sense."""
    with pytest.raises(UsageError) as caught:
        parsed(*arguments)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_number_that_python_cannot_bear_is_refused_in_a_line(tmp_path: Path) -> None:
    """Beyond 4,300 digits it cannot even be shown."""
    path = tmp_path / "bad.yaml"
    path.write_text(f"lease_bytes: 0x{'f' * 9000}\n")

    with pytest.raises(ConfigError, match=f"lease_bytes in {path}") as caught:
        Settings.build(file=path)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "is_taken"),
    [
        ({"upstream": "tcp:primary.example:9092"}, False),
        ({"upstream": "tcp:host=primary.example:port=9092"}, False),
        ({"upstream": "ssl:primary.example:9092"}, False),
        ({"upstream": "http://primary.example:9093"}, False),
        ({"upstream": ["tls:primary.example:9092", "http://127.0.0.1.example:9093"]}, False),
        ({"upstream": "tls:primary.example:9092"}, True),
        ({"upstream": "https://primary.example:9093"}, True),
        ({"upstream": ["tcp:localhost:9092", "http://[::1]:9093", "http://127.0.0.2:9093"]}, True),
        ({"upstream": "unix:/run/synrepl.sock"}, True),
    ],
    ids=str,
)
def test_no_key_is_sent_where_others_can_read_it(
    flags: dict[str, Any], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by this daemon; `--insecure` allows that, and nothing else."""
    check_private(flags, is_taken, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://::1]:9093", "http://[::g]:9093", "http://::1:9093", "https://hs:port", "http://"],
)
def test_an_upstream_that_is_no_url_is_refused_at_the_start(url: str) -> None:
    """A daemon that starts would look for it for ever."""
    with pytest.raises(ConfigError, match="must be a URL"):
        parse_upstream(url)


@pytest.mark.parametrize(
    ("host", "name"),
    [("paris.example.org", "paris-5d040061"), ("", "master-5d040061"), ("a b", "master-5d040061")],
)
def test_the_default_name_of_a_replica_is_that_of_its_host(
    host: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance is called master nearly everywhere, which reads as a role."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)

    assert CopySettings(server_name="hs").name_of("5d040061-7a3c") == name
    assert CopySettings(server_name="hs").name_of("00000000-5d04-0061-8000") == name.replace("40061", "4-006")
    assert CopySettings(server_name="hs", replica_name="rome").name_of("5d040061") == "rome"
