"""Release 26.11.1 and this one at the two ends of each way: lines, HTTP with a key, Redis, RESP, replicas."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes.channel import SECRET, Fact, ask, eventually, kept, knows, status
from tests.processes.loading import made_rows
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon
from tests.upgrades.freeze import post
from tests.upgrades.frozen import RELEASE, OldRelease, Release

BOTH: Final = pytest.mark.parametrize("direction", [f"{RELEASE} to this", f"this to {RELEASE}"])
FACTS: Final = 12


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The frozen release."""
    return Release(OldRelease(tmp_path_factory.mktemp("release")))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what was started."""
    with ExitStack() as stack:
        yield stack


def sides(direction: str, old: Release) -> tuple[Release, Release]:
    """Who sends, and who receives."""
    return (old, Release()) if direction.startswith(RELEASE) else (Release(), old)


def fill(url: str, stream: str = "receipts", *, first: int = 1) -> None:
    """Some facts, one of them with several rows."""
    post(url, stream, [made_rows(stream, number) for number in range(first, first + FACTS)])


def numbers(facts: list[Fact], stream: str = "receipts") -> list[int]:
    """Which of them came, each as often as it came."""
    return [int(one.rows.split("~")[1]) for one in facts if one.stream == stream]


@BOTH
@pytest.mark.parametrize("dialect", ["legacy", "middle", "current", "1.163"])
def test_lines(direction: str, dialect: str, old: Release, stack: ExitStack, tmp_path: Path) -> None:
    """A follower of one release at a daemon of the other: a backlog by HTTP or by lines, then live facts."""
    sender, receiver = sides(direction, old)
    daemon = stack.enter_context(sender.daemon(tmp_path / "daemon", "--dialect", dialect))
    fill(daemon.url)
    at = ("tail", f"tcp:{daemon.follow}", "--http", daemon.url, "--dialect", dialect)
    tail = stack.enter_context(
        receiver.start(*at, "--from", "earliest", "--stream", "receipts", cwd=tmp_path)
    )
    tail.wait_until(lambda lines: told(lines) == list(range(1, FACTS + 1)))
    fill(daemon.url, first=FACTS + 1)
    tail.wait_until(lambda lines: told(lines) == list(range(1, 2 * FACTS + 1)))


def told(lines: list[str]) -> list[int]:
    """The numbers of the facts that a follower printed."""
    said = [json.loads(line) for line in lines if '"rdata"' in line]
    return [int(one["rows"][0][2].split("~")[1]) for one in said]


@BOTH
def test_http_with_a_key(direction: str, old: Release, stack: ExitStack, tmp_path: Path) -> None:
    """Appends and the changelog, with the key as `Authorization: Bearer`; no key, no facts."""
    sender, receiver = sides(direction, old)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    daemon = stack.enter_context(sender.daemon(tmp_path / "daemon", "--secret-file", str(secret)))
    key = ("--secret-file", str(secret))
    rows = "".join(json.dumps(made_rows("push_rules", number)[0]) + "\n" for number in range(1, FACTS + 1))
    receiver.run("append", "push_rules", "--url", daemon.url, *key, cwd=tmp_path, stdin=rows)
    tail = stack.enter_context(receiver.start("tail", daemon.url, *key, "--from", "earliest", cwd=tmp_path))
    tail.wait_until(lambda lines: sum('"push_rules"' in line for line in lines) == FACTS)
    assert len(kept(daemon.url)) == FACTS
    with receiver.start("tail", daemon.url, "--from", "earliest", cwd=tmp_path) as without:
        without.wait_for("requires a secret")


@BOTH
def test_redis(direction: str, old: Release, stack: ExitStack, tmp_path: Path) -> None:
    """Both on one Redis: what one writes, the other has."""
    sender, receiver = sides(direction, old)
    redis = stack.enter_context(RedisServer())
    joined = ("--redis", redis.url, "--dialect", "1.163")
    writer = stack.enter_context(
        sender.daemon(tmp_path / "w", *joined, "--instance-name", "alpha", "--redis-writes", "receipts")
    )
    map_file = tmp_path / "map.yaml"
    map_file.write_text(json.dumps({"instance_map": {"alpha": writer.url}}))
    reader = stack.enter_context(
        receiver.daemon(tmp_path / "r", *joined, "--instance-name", "beta", "--config", str(map_file))
    )
    eventually(lambda: status(writer.url)["redis"]["is_writing"], "a writer that has its name")
    eventually(lambda: knows(reader.url, "receipts", "alpha"), "a reader that knows where the writer stands")
    fill(writer.url)
    eventually(lambda: numbers(kept(reader.url)) == list(range(1, FACTS + 1)), "all facts at the reader")


@BOTH
def test_resp(direction: str, old: Release, stack: ExitStack, tmp_path: Path) -> None:
    """One is in Redis' place, and the other is a client of its RESP port."""
    server, client = sides(direction, old)
    resp = ("--resp", "tcp:0:interface=127.0.0.1", "--dialect", "1.163")
    channel = stack.enter_context(server.daemon(tmp_path / "server", *resp))
    at = next(line for line in channel.lines if "RESP: listening at tcp:" in line).split("at tcp:")[1]
    joined = ("--redis", f"redis://{at.split(',')[0]}", "--dialect", "1.163")
    writer = stack.enter_context(
        client.daemon(tmp_path / "c", *joined, "--instance-name", "alpha", "--redis-writes", "receipts")
    )
    eventually(lambda: status(writer.url)["redis"]["is_writing"], "a writer that has its name")
    eventually(lambda: knows(channel.url, "receipts", "alpha"), "a port that knows where the writer stands")
    fill(writer.url)
    eventually(lambda: numbers(kept(channel.url)) == list(range(1, FACTS + 1)), "all facts at the port")


# -- replicas ----------------------------------------------------------------------------------------------

NEEDED: Final = "to a release after 26.11.1"


@pytest.mark.parametrize("over", ["lines", "HTTP"])
def test_a_replica_of_the_old_release_is_refused(
    over: str, old: Release, stack: ExitStack, tmp_path: Path
) -> None:
    """Both say in one line that the replica is to be updated, with or without keys."""
    upstream = stack.enter_context(Release().daemon(tmp_path / "upstream"))
    replica = stack.enter_context(old.daemon(tmp_path / "replica", "--upstream", where(upstream, over)))
    line = f"update the replica {NEEDED}"
    upstream.wait_for(line)
    eventually(lambda: line in status(replica.url)["upstream"]["why"], "the reason at the replica")


@pytest.mark.parametrize("over", ["lines", "HTTP"])
def test_an_upstream_of_the_old_release_is_named(
    over: str, old: Release, stack: ExitStack, tmp_path: Path
) -> None:
    """The replica says what to update. The upstream, which cannot know better, logs the line of the page."""
    upstream = stack.enter_context(old.daemon(tmp_path / "upstream"))
    replica = stack.enter_context(Release().daemon(tmp_path / "replica", "--upstream", where(upstream, over)))
    line = f"the upstream may be of an older release: update it first, {NEEDED}"
    eventually(lambda: line in status(replica.url)["upstream"]["why"], "the reason at the replica")
    upstream.wait_for("cannot parse HELLO: body is invalid: Object missing required field `nonce`")


def where(daemon: Daemon, over: str) -> str:
    """The upstream of a replica."""
    return daemon.url if over == "HTTP" else f"tcp:{daemon.follow}"


@pytest.mark.story
def test_the_order_of_the_upgrade(old: Release, stack: ExitStack, tmp_path: Path) -> None:
    """The primary first, then the replica, as the page says; nothing is lost or copied anew."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    key = ("--secret-file", str(secret))
    primary = stack.enter_context(old.daemon(tmp_path / "primary", *key))
    ports = ports_of(primary)
    upstream = ("--upstream", f"tcp:{primary.follow}")
    replica = stack.enter_context(old.daemon(tmp_path / "replica", *key, *upstream))
    fill(primary.url)
    settle(primary, replica)

    primary.terminate()
    primary = stack.enter_context(
        Release().daemon(tmp_path / "primary", *key, port=ports[0], http_port=ports[1])
    )
    fill(primary.url, first=FACTS + 1)
    eventually(
        lambda: f"update the replica {NEEDED}" in status(replica.url)["upstream"]["why"],
        "the replica's reason",
    )
    assert numbers(kept(replica.url)) == list(range(1, FACTS + 1)), "its copy is served meanwhile"

    replica.terminate()
    replica = stack.enter_context(Release().daemon(tmp_path / "replica", *key, *upstream))
    settle(primary, replica)
    assert numbers(kept(replica.url)) == list(range(1, 2 * FACTS + 1))
    assert not any("joining tcp:" in line for line in replica.lines), replica.lines


def ports_of(daemon: Daemon) -> tuple[int, int]:
    """Of lines and of HTTP."""
    return int(daemon.follow.rpartition(":")[2]), int(daemon.url.rpartition(":")[2])


def settle(*daemons: Daemon) -> None:
    """Until all are at the same place."""

    def place(daemon: Daemon) -> Any:
        said = status(daemon.url)
        return said["epoch"], said["serial"], said["digest"]

    eventually(lambda: len({place(one) for one in daemons}) == 1, "one place at all")
    assert ask(daemons[0].url, "/livez")
