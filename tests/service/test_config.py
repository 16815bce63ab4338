"""Settings: every one by flag and by file, who wins, what is refused and how it is said."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from twisted.python.usage import UsageError

from scripts.docs import settings as settings_page
from synrepl.base.access import Key, Right
from synrepl.base.settings import Setting
from synrepl.config import Settings, settings
from synrepl.config.settings import settings_class
from synrepl.errors import ConfigError
from synrepl.ingest.write_policy import StreamWrite
from synrepl.tap import Options
from synrepl.wire.dialect import LEGACY, NATIVE, Dialect
from tests.certificates import Authority

ROOT = Path(__file__).resolve().parents[2]

REMOTE = "postgresql://synrepl@db.example/synapse?passfile=/etc/synrepl/pgpass"
LOCAL = "postgres:///synapse?host=/run/postgresql"

# name, what the flag says, what the file says, what it becomes
VALUES: list[tuple[str, str, Any, Any]] = [
    ("server_name", "example.org", "example.org", "example.org"),
    ("instance_name", "w1", "w1", "w1"),
    ("listen", "tcp:1:interface=127.0.0.1", ["tcp:1:interface=127.0.0.1"], ("tcp:1:interface=127.0.0.1",)),
    ("http", "unix:/tmp/here", "unix:/tmp/here", "unix:/tmp/here"),
    ("database", "sqlite:/tmp/a.db", "sqlite:/tmp/a.db", "sqlite:/tmp/a.db"),
    ("database", REMOTE, REMOTE, REMOTE),
    ("database", LOCAL, LOCAL, LOCAL),
    ("follow", "tcp:old:9092", ["tcp:old:9092"], ("tcp:old:9092",)),
    ("retain_seconds", "1.5", 1.5, 1.5),
    ("dialect", "legacy", "legacy", LEGACY),
    ("dialect", "1.83", "1.83", Dialect.parse("1.83")),
    ("dialect", "auto", "auto", None),
    ("ping_seconds", "1", 1, 1.0),
    ("timeout_seconds", "30", 30, 30.0),
    ("reader_bytes", "65536", "64KiB", 65536),
    ("max_body_bytes", "1MiB", "1 MiB", 1024**2),
    ("advertise", "db1.example", "db1.example", "db1.example"),
    ("dialect", "native", "native", NATIVE),
]


def written(folder: Path, **values: Any) -> Path:
    """A file with these settings."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def parsed(*arguments: str) -> Settings:
    """What the command line makes of these."""
    options = Options()
    options.parseOptions(list(arguments))
    assert options.settings is not None
    return options.settings


@pytest.mark.parametrize(("name", "flag", "in_file", "value"), VALUES)
def test_a_setting_can_be_given_as_a_flag_and_in_a_file(
    name: str, flag: str, in_file: Any, value: Any, tmp_path: Path
) -> None:
    """The same names, the same meaning."""
    path = written(tmp_path, **{name: in_file})

    assert getattr(parsed(f"--{name.replace('_', '-')}", flag), name) == value
    assert getattr(parsed("--config", str(path)), name) == value


@pytest.mark.parametrize("one", settings(), ids=lambda one: one.name)
def test_the_example_of_a_setting_is_accepted(one: Setting) -> None:
    """The example file and the manual show it; a setting without a default has one, and the server name."""
    assert bool(one.example) == (one.default in (None, {}, ()) or one.name == "server_name")

    parsed = one.parse(yaml.safe_load(one.example)) if one.example else one.parse(one.default)

    assert one.example or getattr(Settings.build(), one.name) == parsed


def test_replicas_have_secrets_of_their_own(tmp_path: Path) -> None:
    """A line for each; who has none shows the shared one."""
    keys = tmp_path / "keys"
    keys.write_text("# peers\nr1 abc\n\nr2 def replicate,administer a,b w1,w2\nr3 ghi all\n")
    keys.chmod(0o600)

    built = parsed("--keys-file", str(keys))

    assert [
        Key(name="r1", secret="abc", rights=frozenset({Right.READ, Right.WRITE, Right.REPLICATE})),
        Key(
            name="r2",
            secret="def",
            rights=frozenset({Right.READ, Right.REPLICATE, Right.ADMINISTER}),
            streams=frozenset({"a", "b"}),
            instances=frozenset({"w1", "w2"}),
        ),
        Key(name="r3", secret="ghi"),
    ] == list(built.keys)
    assert "abc" not in repr(built)
    assert "abc" not in repr(built.keys)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("r1 hush", "an earlier line has the same name"),
        ("r2 abc", "another key has the same secret"),
        ("hush", "expected a name, a secret"),
        ("r2 hush read a w1 extra", "expected a name, a secret"),
        ("r2 hush reed", "must be `all`, `-` or rights out of read, write, replicate, administer"),
        ("r2 hush read *", "the fourth word is `.`, which is no name: `-` stands for all streams"),
        ("r2 hush read a,,b", "the fourth word: streams must be names of 1 to 255 printable characters"),
        ("r2 hush read a w1,", "the fifth word: instances must be names of 1 to 255 printable characters"),
        ("r2 hush read a hush,w\x001", "separate them by single commas"),
    ],
)
def test_a_file_of_secrets_that_makes_no_sense(tmp_path: Path, line: str, why: str) -> None:
    """It is told which line; what stands there is not."""
    keys = tmp_path / "keys"
    keys.write_text(f"r1 abc\n{line}\n")

    with pytest.raises(ConfigError, match=f"line 2: .*{why}") as caught:
        Settings.build({"keys_file": str(keys)})
    assert "hush" not in str(caught.value)


def test_redis_and_what_is_written_there(tmp_path: Path) -> None:
    """By flags and in a file; nothing of it is a secret."""
    in_file = {"redis": "rediss://r:7", "redis_writes": ["caches", {"stream": "receipts", "writer": "w2"}]}
    path = written(tmp_path, instance_name="w1", **in_file)

    built = parsed("--config", str(path))
    flags = parsed("--redis", "redis://r", "--redis-writes", "caches, receipts", "--instance-name", "w1")

    assert "rediss://r:7" == str(built.redis)
    assert (StreamWrite("caches"), StreamWrite("receipts", "w2")) == built.redis_writes
    assert (StreamWrite("caches"), StreamWrite("receipts")) == flags.redis_writes
    assert parsed().redis is None


def test_the_defaults_are_those_of_the_contract() -> None:
    """Outside programs rely on them."""
    built = Settings.build()

    assert (
        built.server_name,
        built.instance_name,
        built.listen,
        built.http,
        built.database,
        built.retain_seconds,
        built.dialect,
        built.insecure,
    ) == (
        "localhost",
        "master",
        ("tcp:9092:interface=127.0.0.1",),
        "tcp:9093:interface=127.0.0.1",
        "sqlite:synrepl.db",
        604_800.0,
        None,
        False,
    )


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    """Also for lists: the flags replace what the file lists."""
    path = written(tmp_path, server_name="file", instance_name="file", listen=["unix:/a", "unix:/b"])

    built = parsed("-c", str(path), "--server-name", "flag", "--listen", "unix:/c", "--listen", "unix:/d")

    assert ("flag", "file", ("unix:/c", "unix:/d")) == (
        built.server_name,
        built.instance_name,
        built.listen,
    )


def test_the_example_file_is_right() -> None:
    """It is what people start from."""
    assert Settings.build(file=ROOT / "contrib/config.example.yaml") == Settings.build()


def test_unknown_names_are_told_with_the_nearest_known_one(tmp_path: Path) -> None:
    """A typo must not be a default in silence."""
    with pytest.raises(ConfigError, match=r"no setting sever_name; did you mean server_name\?"):
        Settings.build(file=written(tmp_path, sever_name="x"))
    with pytest.raises(ConfigError, match=r"did you mean retain_seconds\?"):
        Settings.build(file=written(tmp_path, **{"retain-seconds": 5}))
    with pytest.raises(UsageError, match=r"--lisen not recognized; did you mean listen\?"):
        parsed("--lisen", "unix:/a")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dialect", "legcy"], "did you mean legacy?"),
        (["--redis", "http://localhost"], "--redis "),
        (["--redis", "redis://:hush@localhost"], "password_file"),
        (["--redis-writes", "caches"], "--redis-writes needs --redis"),
        (["--redis", "redis://h", "--redis-writes", "caches"], "the name of another writer"),
        (
            ["--redis", "redis://h", "--redis-writes", "a,a", "--instance-name", "w"],
            "--redis-writes names a stream twice",
        ),
        (["--follow", "9092"], "must be a Twisted client endpoint string"),
        (["--database", "postgresql://ada:hush@a/b"], "pgpass file, and set ?passfile=/path"),
        (["--database", "postgresql://:hush@a/b"], "contains a password"),
        (["--database", "postgresql://ada:hu/sh@a/b"], "contains a password"),
        (["--database", "postgresql://a/b?sslmode=require&password=hush"], "contains a password"),
        (["--database", "postgresql:hush"], "with // after the colon"),
        (["--database", "postgresql://[hush/b"], "must be a URL such as"),
        (["--database", "postgresql://a/b?hush"], "must be a URL such as"),
        (["--database", "postgresql://a/b#hush"], "without spaces and #"),
        (["--database", "mysql://ada:hush@a/b"], "must be sqlite:PATH"),
        (["--database", "postgresql+psycopg2://ada@h/db"], "leave out what names it (jdbc:, +psycopg2)"),
        (["--database", "dbname=log password=hush host=h"], "put host, user and dbname into the URL"),
        (["--database", "sqlite:///a.db"], "did you mean sqlite:/a.db or sqlite:a.db?"),
        (["--database", "a.db"], "must be sqlite:PATH"),
        (["--database", "sqlite:"], "needs the path"),
        (["--listen", "9092"], "use tcp:9092:interface=127.0.0.1"),
        (["--listen", "tpc:9092"], "must be a Twisted server endpoint string"),
        (["--http", "tcp:lots"], "must be a Twisted server endpoint string"),
        (["--retain-seconds", "0"], "number of seconds above 0"),
        (["--retain-seconds", "nan"], "number of seconds above 0"),
        (["--reader-bytes", "0"], "number of bytes above 0"),
        (["--instance-name", "two words"], "one word"),
        (["--secret-file", "/no/such/file"], "cannot read the secret file /no/such/file"),
        (["--config", "/no/such/file"], "cannot read /no/such/file"),
        (["--ping-seconds", "30"], "longer than --ping-seconds"),
        (["extra"], "unexpected argument 'extra'"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(arguments: list[str], said: str) -> None:
    """With the name of the setting, and what would make sense."""
    with pytest.raises(UsageError) as caught:
        parsed(*arguments)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)  # a password


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("listen: [", "line 1: not YAML"),
        ("- a\n", "expected `key: value` lines"),
        ("insecure: 'yes'\n", "insecure in .* must be true or false"),
        ("instance_map: {w1: nonsense}\n", "must give w1 an HTTP address"),
        ("instance_map: {w1: {path: /run/w1.sock}}\n", "Unix socket '/run/w1.sock' for w1.* HTTP over TCP"),
        ("instance_map: {w1: {host: localhost}}\n", "w1, which is not a table of host, port"),
        (
            "instance_map: {w1: {host: localhost, port: 70000}}\n",
            "w1, which is not a table of host, port",
        ),
        (
            "instance_map: {w1: {host: h, port: 1, tls: maybe}}\n",
            "w1, which is not a table of host, port",
        ),
        ("instance_map: {w1: {host: h/x, port: 1}}\n", "w1, which is not a table of host, port"),
        ("instance_map: {w1: {host: h, port: 1, ssl: true}}\n", "w1, which is not a table of host, port"),
        ("listen: []\n", "or a list of them"),
        ("listen: {a: b}\n", "or a list of them"),
    ],
)
def test_a_bad_file_is_told_in_one_line(content: str, said: str, tmp_path: Path) -> None:
    """With its name."""
    path = tmp_path / "bad.yaml"
    path.write_text(content)

    with pytest.raises(ConfigError, match=said) as caught:
        Settings.build(file=path)

    assert "bad.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("timeout", ["5", "4.9"])
def test_a_timeout_is_longer_than_the_time_between_pings(timeout: str) -> None:
    """With the same time for both, a connection would be closed whenever its PING is a moment late."""
    with pytest.raises(ConfigError, match="--timeout-seconds must be longer than --ping-seconds"):
        Settings.build({"ping_seconds": "5", "timeout_seconds": timeout})


@pytest.mark.parametrize("content", [b"listen: \xda", b"listen: \x07"])
def test_a_file_that_is_no_text_is_told_in_one_line(content: bytes, tmp_path: Path) -> None:
    """What the library says of it has several lines."""
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"bad\.yaml: not YAML: ") as caught:
        Settings.build(file=path)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["ping_seconds", "reader_bytes", "server_name", "database"])
def test_a_number_that_python_cannot_bear_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    """As a float it overflows; beyond 4,300 digits it cannot even be shown."""
    path = tmp_path / "bad.yaml"
    path.write_text(f"{name}: 0x{'f' * 9000}\n")

    with pytest.raises(ConfigError, match=f"{name} in {path}") as caught:
        Settings.build(file=path)

    assert "\n" not in str(caught.value)


def test_the_map_of_instances_is_for_the_file_only(tmp_path: Path) -> None:
    """It is a table; flags are lines."""
    path = written(tmp_path, instance_map={"w1": "http://localhost:9101"})

    assert Settings.build(file=path).instance_map == {"w1": "http://localhost:9101"}
    with pytest.raises(UsageError, match="not recognized"):
        parsed("--instance-map", "w1")


def test_the_map_of_instances_is_taken_as_synapse_has_it(tmp_path: Path) -> None:
    """It is pasted from a configuration that all workers share: this daemon is in it too."""
    path = tmp_path / "synrepl.yaml"
    path.write_text(
        """
        instance_name: synrepl1
        redis: redis://r
        redis_writes: [caches]
        instance_map:
          main: {host: localhost, port: 9100}
          w1: {host: w1.example, port: 9101, tls: true}
          w2: {host: "::1", port: 9102, tls: false}
          w3: http://localhost:9103
          synrepl1: {host: localhost, port: 9093}
        """
    )

    assert {
        "main": "http://localhost:9100",
        "w1": "https://w1.example:9101",
        "w2": "http://[::1]:9102",
        "w3": "http://localhost:9103",
    } == Settings.build(file=path).instance_map


def test_a_daemon_named_as_the_main_process_may_fetch_from_it(tmp_path: Path) -> None:
    """Its name is `master` unless it is given another one."""
    path = written(tmp_path, instance_map={"master": "http://localhost:9100"})

    assert {"master": "http://localhost:9100"} == Settings.build(file=path).instance_map


def test_a_writer_on_redis_has_no_name_of_another_instance(tmp_path: Path) -> None:
    """Two that share one make the others drop facts of both."""
    path = tmp_path / "synrepl.yaml"
    path.write_text(
        """
        instance_name: synrepl1
        redis: redis://r
        redis_writes: [{stream: caches, writer: w1}]
        instance_map: {w1: {host: localhost, port: 9101}}
        """
    )

    with pytest.raises(ConfigError, match="w1 is the name of another writer"):
        Settings.build(file=path)


def certified(folder: Path) -> None:
    """Makes c.pem and k.pem, and ca.pem that signed them."""
    authority = Authority(folder, "ca")
    for path, name in zip(authority.sign("localhost"), ("c.pem", "k.pem"), strict=True):
        path.rename(folder / name)


def test_certificates_of_clients_are_a_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the line protocol, which has no other, and of HTTP."""
    monkeypatch.chdir(tmp_path)
    certified(tmp_path)
    endpoint = "tls:9092:certificate=c.pem:privateKey=k.pem:trustRoots=ca.pem"

    assert Settings.build({"listen": endpoint, "http": endpoint}).listen == (endpoint,)
    with pytest.raises(ConfigError, match="--private-key-file go together"):
        Settings.build({"certificate_file": "c.pem"})


OPEN, CLOSED = "tcp:9092", "tcp:9092:interface=127.0.0.1"


@pytest.mark.parametrize(
    ("endpoint", "is_loopback"),
    [
        (CLOSED, True),
        ("tcp:9092:127.0.0.1", True),
        ("tcp:9092:interface=127.9.9.9", True),
        ("tcp:9092:interface=localhost", True),
        ("tcp6:9092:interface=\\:\\:1", True),
        ("unix:/tmp/socket", True),
        ("haproxy:tcp:9092:interface=127.0.0.1", True),
        (OPEN, False),
        ("tcp6:9092", False),
        ("tls:9092:interface=127.0.0.1:certificate=c.pem:privateKey=k.pem", True),
        ("tls:9092:certificate=c.pem:privateKey=k.pem", False),
        ("tcp:9092:interface=0.0.0.0", False),
        ("tcp:9092:interface=10.0.0.1", False),
        ("tcp:9092:interface=127.evil.example", False),
        ("tcp:9092:interface=", False),
        ("haproxy:tcp:9092", False),
    ],
)
def test_closed_by_default(
    endpoint: str, is_loopback: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing beyond this machine without a guard or a word; the secret guards HTTP only."""
    monkeypatch.chdir(tmp_path)
    certified(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    guarded = {"secret_file": str(secret)}

    def is_taken(**flags: Any) -> bool:
        try:
            Settings.build(flags)
        except ConfigError as error:
            return "--insecure" not in str(error)
        return True

    taken = {
        "listen": is_taken(listen=endpoint),
        "listen, secret": is_taken(listen=endpoint, **guarded),
        "listen, insecure": is_taken(listen=endpoint, insecure=True),
        "http": is_taken(http=endpoint),
        "http, secret": is_taken(http=endpoint, **guarded),
        "http, insecure": is_taken(http=endpoint, insecure=True),
    }

    assert taken == {
        "listen": is_loopback,
        "listen, secret": is_loopback,
        "listen, insecure": True,
        "http": is_loopback,
        "http, secret": is_loopback or endpoint.startswith("tls:"),
        "http, insecure": True,
    }


TLS = "tls:9092:certificate=c.pem:privateKey=k.pem"


@pytest.mark.parametrize(
    ("flags", "is_taken"),
    [
        ({"listen": OPEN, "dialect": "native"}, False),
        ({"listen": TLS, "dialect": "native"}, True),
        ({"listen": CLOSED, "dialect": "native"}, True),
        ({"http": "unix:/tmp/socket"}, True),
        ({"http": "haproxy:tcp:9093"}, False),
    ],
    ids=str,
)
def test_no_key_is_sent_where_others_can_read_it(
    flags: dict[str, Any], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to this daemon nor by it; `--insecure` allows that, and nothing else."""
    check_private(flags, is_taken, tmp_path, monkeypatch)


def check_private(
    flags: dict[str, Any], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Try these settings with a secret and with keys."""
    monkeypatch.chdir(tmp_path)
    certified(tmp_path)
    for name, text in (("secret", "s3cret"), ("keys", "paris of-paris all\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    guards: list[dict[str, Any]] = [{"secret_file": "secret"}]
    guards += [] if "upstream" in flags else [{"keys_file": "keys"}]
    for guard in guards:
        built = Settings.build({**flags, **guard, "insecure": True})
        assert built.keyring().is_required
        if is_taken:
            Settings.build({**flags, **guard})
        else:
            with pytest.raises(ConfigError, match="--insecure") as refused:
                Settings.build({**flags, **guard})
            assert "\n" not in str(refused.value)


def test_passwords_of_others_go_as_their_urls_say(tmp_path: Path) -> None:
    """As Synapse sends them; that is said."""
    (tmp_path / "secret").write_text("hush")
    (tmp_path / "secret").chmod(0o600)
    file = tmp_path / "synrepl.yaml"
    file.write_text(
        f"""
        secret_file: {tmp_path}/secret
        redis: redis://redis.example?password_file={tmp_path}/secret
        database: postgresql://synrepl@db.example/synrepl
        instance_map: {{far: http://far.example:9101, near: http://localhost:9101, safe: https://far.example}}
        """
    )
    notes = Settings.build(file=file).notes

    assert [note.partition(":")[0] for note in notes] == ["redis", "database", "instance_map"]
    assert "far at http://far.example:9101" in notes[-1]
    assert not Settings.build({"redis": "redis://redis.example", "database": "postgresql:///synrepl"}).notes


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql:///synrepl?host=/run/postgresql", ""),
        ("postgresql://synrepl@%2Frun%2Fpostgresql/synrepl", ""),
        ("postgresql:///synrepl?host=@synrepl", ""),
        ("postgresql://localhost,127.0.0.1:5433/synrepl", ""),
        ("postgresql:///synrepl?host=db.example&sslmode=verify-full", ""),
        ("postgresql:///synrepl?host=db.example", "that db.example is the server: add &sslmode=verify-full"),
        (
            "postgresql://localhost,db.example/synrepl",
            "that db.example is the server: add ?sslmode=verify-full",
        ),
    ],
)
def test_a_server_whose_name_nothing_verifies_is_told(url: str, said: str) -> None:
    """As libpq reads the address: what goes by a UNIX socket leaves no machine."""
    notes = Settings.build({"database": url}).notes

    assert [said] * bool(said) == [note.partition("nothing verifies ")[2] for note in notes]


def test_the_refusal_says_how_to_mend_it() -> None:
    """The operator most likely wanted loopback."""
    with pytest.raises(ConfigError, match=r"use tcp:9092:interface=127.0.0.1, or set --insecure"):
        Settings.build({"listen": OPEN})


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    """Settings end in logs."""
    path = tmp_path / "secret"
    path.write_text("hush-hush\n")
    path.chmod(0o644)

    built = Settings.build({"secret_file": str(path)})

    assert built.secret == "hush-hush"
    assert "hush" not in repr(built)
    assert ["every user of this machine can read"] == [warning[:35] for warning in built.warnings]


@pytest.mark.parametrize("content", [b"", b" \n", b"two\nlines", b"\xff\xfe"])
def test_a_secret_file_holds_a_secret(content: bytes, tmp_path: Path) -> None:
    """An empty secret would be no guard at all."""
    path = tmp_path / "secret"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match="the secret file"):
        Settings.build({"secret_file": str(path)})


def test_the_table_of_the_manual_has_every_setting() -> None:
    """It is printed from the classes."""
    table = settings_page()

    for one in settings():
        assert f"`{one.name}`" in table


@pytest.mark.parametrize(
    "text",
    ["[" * 3_000, "reader_bytes: " + "9" * 5_000, "reader_bytes: '" + "9" * 5_000 + "'", "? [" * 2_000],
)
def test_a_file_that_python_cannot_bear_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    """It was a traceback: numbers of 5,000 digits, lists in lists in lists."""
    path = tmp_path / "c.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        Settings.build(file=path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_each_setting_has_a_heading() -> None:
    """Or it would be in no help, no manual and no file."""
    declared = {field.name for field in dataclasses.fields(settings_class()) if "setting" in field.metadata}

    assert declared == {one.name for one in settings()}
    assert len(declared) == len(settings())


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90", 90), ("30s", 30), ("1.5h", 5400), ("7d", 604_800), ("2 w", 1_209_600), ("250ms", 0.25), (5, 5)],
)
def test_a_duration_may_have_a_unit(given: Any, seconds: float) -> None:
    """As people write it, in the file and on the command line."""
    assert seconds == Settings.build({"retain_seconds": given}).retain_seconds


@pytest.mark.parametrize("given", ["", "d", "7y", "-1d", "0s", "1e400", "7dd", True, "٣d"])
def test_a_duration_that_makes_no_sense(given: Any) -> None:
    with pytest.raises(ConfigError, match="a number of seconds above 0, such as 90 or 30s"):
        Settings.build({"retain_seconds": given})
