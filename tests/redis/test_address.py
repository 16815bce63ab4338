"""URLs of Redis: what they mean, and what people get told who wrote another."""

import subprocess
import sys
from pathlib import Path

import pytest

from synrepl.errors import ConfigError
from synrepl.transports.redis.address import RedisAddress

GOOD = [
    ("redis://redis.example", RedisAddress(scheme="redis", hosts=(("redis.example", 6379),))),
    ("redis://10.0.0.1:7000/0", RedisAddress(scheme="redis", hosts=(("10.0.0.1", 7000),))),
    ("redis://host/", RedisAddress(scheme="redis", hosts=(("host", 6379),))),
    ("REDIS://Host:7000/3", RedisAddress(scheme="redis", hosts=(("Host", 7000),))),
    ("redis://[::1]", RedisAddress(scheme="redis", hosts=(("::1", 6379),))),
    ("redis://[fe80::1%25eth0]:7000", RedisAddress(scheme="redis", hosts=(("fe80::1%eth0", 7000),))),
    ("rediss://host", RedisAddress(scheme="rediss", hosts=(("host", 6379),), tls=True)),
    (
        "rediss://host:7000/1?ca_file=/ca.pem&server_name=redis.example",
        RedisAddress(
            scheme="rediss",
            hosts=(("host", 7000),),
            tls=True,
            ca_file=Path("/ca.pem"),
            server_name="redis.example",
        ),
    ),
    (
        "rediss://host?cert_file=/c.pem&key_file=/with%20space.pem",
        RedisAddress(
            scheme="rediss",
            hosts=(("host", 6379),),
            tls=True,
            cert_file=Path("/c.pem"),
            key_file=Path("/with space.pem"),
        ),
    ),
    (
        "redis://host?password_file=/etc/pw&username=synrepl",
        RedisAddress(
            scheme="redis",
            hosts=(("host", 6379),),
            username="synrepl",
            password_file=Path("/etc/pw"),
        ),
    ),
    (
        "redis://host?password_file=/run/secrets/redis@hs",
        RedisAddress(
            scheme="redis", hosts=(("host", 6379),), password_file=Path("/run/secrets/redis@hs")
        ),
    ),
    (
        "redis+sentinel://a,b:7000,[::1]:7001/mymaster?sentinel_password_file=/s&password_file=/p",
        RedisAddress(
            scheme="redis+sentinel",
            hosts=(("a", 26379), ("b", 7000), ("::1", 7001)),
            service="mymaster",
            password_file=Path("/p"),
            sentinel_password_file=Path("/s"),
        ),
    ),
    (
        "redis+sentinel://a/mymaster?tls=true&ca_file=/ca.pem",
        RedisAddress(
            scheme="redis+sentinel",
            hosts=(("a", 26379),),
            service="mymaster",
            tls=True,
            ca_file=Path("/ca.pem"),
        ),
    ),
    ("redis+unix:///run/redis.sock", RedisAddress(scheme="redis+unix", path="/run/redis.sock")),
    (
        "unix:///run/a%20b.sock?password_file=/p",
        RedisAddress(scheme="unix", path="/run/a b.sock", password_file=Path("/p")),
    ),
]  # fmt: skip

BAD = [
    ("", "such as redis://"),
    ("localhost:6379", "such as redis://"),
    ("localhost", "such as redis://"),
    ("redis:localhost", "such as redis://"),
    ("http://host", "such as redis://"),
    ("redis://", "names no host"),
    ("redis://:6379", "names no host"),
    ("redis://host:", "port"),
    ("redis://host:0", "port"),
    ("redis://host:65536", "port"),
    ("redis://host:6379x", "port"),
    ("redis://::1", "brackets"),
    ("redis://[::g]", "IPv6"),
    ("redis://[::1", "brackets"),
    ("redis://ho st", "without spaces"),
    ("redis://host#1", "#"),
    ("redis://a,b", "redis\\+sentinel://"),
    ("redis://host/db", "only a database number"),
    ("redis://host?passwordfile=/p", "did you mean password_file\\?"),
    ("redis://host?x=1", "valid are username, password_file"),
    ("redis://host?password_file", "name=value"),
    ("redis://host?password_file=", "an empty password_file"),
    ("redis://host?password_file=/a&password_file=/b", "twice"),
    ("redis://host?username=me", "password_file"),
    ("redis://host?password=x", "add \\?password_file=/path"),
    ("redis+sentinel://host/s?sentinel_password=x", "add \\?sentinel_password_file=/path"),
    ("redis://host?ca_file=/ca.pem", "rediss://"),
    ("rediss://host?cert_file=/c.pem", "both cert_file and key_file"),
    ("redis+sentinel://a,b", "service"),
    ("redis+sentinel://a,b/", "service"),
    ("redis+sentinel://a,b/s/0", "service"),
    ("redis+sentinel://a,,b/s", "names no host"),
    ("redis+sentinel://a/s?tls=yes", "true or false"),
    ("redis+sentinel://a/s?ca_file=/ca.pem", "tls=true"),
    ("redis+unix://run/redis.sock", "absolute path"),
    ("unix://", "absolute path"),
    ("unix:///run/", "absolute path"),
]

SECRET = [
    "redis://:hunter2@host",
    "redis://user:hunter2@host",
    "redis://hunter2@host",
    "rediss://:hunter2/@host",
    "redis://:hunter2?@host",
    "redis://:hunter2#@host",
    "redis://:hunter2=@host",
    "redis://host?password=hunter2",
    "redis+sentinel://host/s?sentinel_password=hunter2",
    "unix:///run/redis.sock?password=hunter2",
    "redis://host:hunter2",
    "redis://:hunter2",
]


@pytest.mark.parametrize(("url", "expected"), GOOD, ids=[url for url, _ in GOOD])
def test_a_url_is_read(url: str, expected: RedisAddress) -> None:
    """Each form that the manual shows."""
    assert expected == RedisAddress.parse(url)


@pytest.mark.parametrize(("url", "why"), BAD, ids=[url for url, _ in BAD])
def test_a_bad_url_is_refused_in_one_line(url: str, why: str) -> None:
    """That says what would be right."""
    with pytest.raises(ConfigError, match=why) as caught:
        RedisAddress.parse(url)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", SECRET)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    """The command line of a process, and its log, are read by others."""
    with pytest.raises(ConfigError) as caught:
        RedisAddress.parse(url)

    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    if "@" in url or "password" in url:
        assert "password" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:6379/0?password_file=/p", "redis://host"),
        ("rediss://[::1]:7000", "rediss://[::1]:7000"),
        ("redis+sentinel://a:26379,b:1/s?tls=true", "redis+sentinel://a,b:1/s"),
        ("unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
    ],
)
def test_an_address_shows_where_and_no_more(url: str, expected: str) -> None:
    """It goes into logs and onto the status page."""
    address = RedisAddress.parse(url)

    assert (expected, expected) == (address.public, str(address))


def test_a_password_is_read_each_time(tmp_path: Path) -> None:
    """So that it can be changed without a restart; it is never part of the address."""
    path = tmp_path / "password"
    address = RedisAddress.parse(f"redis+sentinel://a/s?password_file={path}&sentinel_password_file={path}")
    path.write_text("  first one\n")
    assert (address.password(), address.sentinel_password()) == ("first one", "first one")
    path.write_text("second")

    assert address.password() == "second"
    assert "second" not in repr(address)
    assert RedisAddress.parse("redis://host").password() is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"a\nb\n", "more than one line"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_bad_password_file_is_reported(tmp_path: Path, content: bytes, why: str) -> None:
    """By its name, and without what is in it."""
    path = tmp_path / "password"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=f"{path} .*{why}") as caught:
        RedisAddress.parse(f"redis://host?password_file={path}").password()
    assert caught.value.__cause__ is None


def test_an_address_is_read_without_a_redis_library() -> None:
    """Importing that one installs a reactor, which settings must not."""
    code = (
        "import sys, synrepl.transports.redis.address;"
        "print({'txredisapi', 'hiredis', 'twisted.internet.reactor'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout == "set()\n"


def test_a_missing_password_file_is_reported(tmp_path: Path) -> None:
    """With what the system says."""
    address = RedisAddress.parse(f"redis://host?password_file={tmp_path}/none")

    with pytest.raises(ConfigError, match="No such file"):
        address.password()
