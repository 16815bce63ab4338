"""The RESP port of real daemons, used by redis-py and redis-cli; several of them, and a promotion."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.certificates import Authority
from tests.processes.channel import eventually
from tests.processes.replicas import Cluster, Member
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer, find_redis_servers

EVENT = '["ev",["$%d","!room:here","m.room.member","@user:here",null,null,"join",false,false]]'


class Client:
    """A process of the homeserver as redis-py sees it: a connection that subscribes, and one for the rest."""

    def __init__(self, port: int, **more: Any) -> None:
        self.redis: Any = redis.Redis(port=port, **more)
        self._subscription: Any = self.redis.pubsub()

    def subscribe(self, server_name: str) -> None:
        """Subscribe, and wait for the confirmation."""
        self._subscription.subscribe(server_name)
        assert self._subscription.get_message(timeout=60)["type"] == "subscribe"

    def message(self) -> str:
        """The next message."""
        found = self._subscription.get_message(timeout=60)
        assert found is not None
        text: str = found["data"].decode()
        return text

    def close(self) -> None:
        """End both connections."""
        self._subscription.close()
        self.redis.close()


def publish(client: Client, name: str, *lines: str) -> None:
    """Publish these lines."""
    for line in lines:
        client.redis.publish(name, line)


def lines_until(client: Client, count: int, command: str = "RDATA") -> list[str]:
    """The next lines with this command that the client hears, so many."""
    found: list[str] = []
    while len(found) < count:
        message = client.message()
        if message.startswith(command):
            found.append(message)
    return found


def is_bridged(member: Member) -> bool:
    """Whether the daemon hears Redis, and can publish there."""
    redis_status = member.status()["redis"]
    return bool(redis_status["subscribed"] and redis_status["publishing"])


def rows(member: Member) -> list[int]:
    """The tokens of the events in a log."""
    return [fact.token for fact in member.facts() if fact.stream == "events" and fact.rows != b"[]"]


@pytest.mark.story
def test_clients_of_redis_use_the_port(tmp_path: Path) -> None:
    """redis-py with its greeting, and redis-cli as an operator types it; the facts are in the log."""
    port = free_port()
    with Cluster(tmp_path) as cluster:
        member = cluster.add("n0", "--resp", f"tcp:{port}:interface=127.0.0.1")
        name = member.status()["server_name"]
        client, other = Client(port), Client(port)
        client.redis.set("key", "value", px=60_000)
        assert client.redis.get("key") == b"value"
        assert client.redis.get("other") is None
        client.subscribe(name)
        position, row = "POSITION events w1 1 1", f"RDATA events w1 2 {EVENT % 2}"
        publish(other, name, position, row)

        assert [position, row] == [client.message(), client.message()]
        eventually(lambda: rows(member) == [2], "the row in the log")
        program = next(iter(find_redis_servers()), None)
        cli = shutil.which("redis-cli") or (program and str(Path(program).with_name("redis-cli")))
        asked = subprocess.run(
            [str(cli), "-p", str(port)],
            input="PING\nGET key\nKEYS *\n",
            capture_output=True,
            text=True,
            check=True,
        )
        assert asked.stdout.splitlines()[:2] == ["PONG", "value"]
        assert "this is synrepl, and no Redis" in asked.stdout
        client.close()
        other.close()


@pytest.mark.story
def test_two_writers_mix_their_batches(tmp_path: Path) -> None:
    """Each batch is passed whole; a writer that begins before its POSITION is heard after that."""
    port = free_port()
    with Cluster(tmp_path) as cluster:
        member = cluster.add("n0", "--resp", f"tcp:{port}:interface=127.0.0.1")
        name = member.status()["server_name"]
        reader, one, two, three = (Client(port) for _ in range(4))
        reader.subscribe(name)
        publish(one, name, "POSITION events w1 1 1")
        publish(two, name, "POSITION events w2 1 1")
        lines_until(reader, 2, "POSITION")  # they wait for the log, and the rows of a writer for them
        for number in range(3):
            publish(one, name, f"RDATA events w1 batch {EVENT % number}")
            publish(two, name, f"RDATA events w2 batch {EVENT % number}")
        publish(three, name, f"RDATA events w3 9 {EVENT % 9}", "POSITION events w3 9 9")
        publish(three, name, f"RDATA events w3 10 {EVENT % 10}")
        publish(two, name, f"RDATA events w2 3 {EVENT % 3}")
        publish(one, name, f"RDATA events w1 4 {EVENT % 4}")

        heard = [words(line) for line in lines_until(reader, 9)]
        heard.remove("w3 10")  # its POSITION waits for the log
        assert heard == [*["w2 batch"] * 3, "w2 3", *["w1 batch"] * 3, "w1 4"]
        eventually(lambda: {3, 4, 10} <= set(rows(member)), "the rows in the log")
        for client in (reader, one, two, three):
            client.close()


def words(line: str) -> str:
    """The writer and the token of a row."""
    return " ".join(line.split(" ")[2:4])


def pair(cluster: Cluster) -> tuple[Member, Member, tuple[int, int]]:
    """A primary and a replica that serve the channel, and their ports."""
    ports = free_port(), free_port()
    first, second = (("--resp", f"tcp:{port}:interface=127.0.0.1") for port in ports)
    primary = cluster.add("n0", *first)
    replica = cluster.add("n1", *second, upstream=primary.front)
    eventually(lambda: replica.status()["resp"]["connected"], "the channel of the primary at the replica")
    return primary, replica, ports


def test_a_channel_has_several_daemons(tmp_path: Path) -> None:
    """What is published at one of them comes to the subscribers of both, and into the log."""
    with Cluster(tmp_path) as cluster:
        primary, replica, ports = pair(cluster)
        name = primary.status()["server_name"]
        clients = [Client(port) for port in (*ports, *ports)]
        above, below, writer_above, writer_below = clients
        above.subscribe(name)
        below.subscribe(name)
        publish(writer_above, name, "POSITION events w1 1 1", f"RDATA events w1 2 {EVENT % 2}")
        publish(writer_below, name, "POSITION events w2 1 1", f"RDATA events w2 3 {EVENT % 3}")
        for reader in (above, below):
            heard = [message for message in (reader.message() for _ in range(4)) if "RDATA" in message]
            assert {f"RDATA events w1 2 {EVENT % 2}", f"RDATA events w2 3 {EVENT % 3}"} == set(heard)
        eventually(lambda: rows(replica) == [2, 3], "both rows in the log")

        aside = Client(ports[0])
        aside.subscribe(f"{name}/USER_IP")
        publish(writer_below, f"{name}/USER_IP", "USER_IP @a:b sesame-of-the-test ip agent dev 1")
        assert "sesame-of-the-test" in aside.message()
        stored = [one for one in tmp_path.rglob("*") if one.is_file() and b"sesame-of" in one.read_bytes()]
        assert stored == []
        for client in (*clients, aside):
            client.close()


def test_a_replica_goes_on_alone_and_is_promoted(tmp_path: Path) -> None:
    """Its clients stay connected: nothing is closed, and the log asks for what it lacks."""
    with Cluster(tmp_path) as cluster:
        primary, replica, ports = pair(cluster)
        name = primary.status()["server_name"]
        reader, writer = Client(ports[1]), Client(ports[1])
        reader.subscribe(name)
        publish(writer, name, "POSITION events w1 1 1", f"RDATA events w1 2 {EVENT % 2}")
        assert [reader.message()[:17] for _ in range(2)] == ["POSITION events w", "RDATA events w1 2"]
        eventually(lambda: rows(replica) == [2], "the row at the replica")

        primary.kill()
        eventually(lambda: not replica.status()["resp"]["connected"], "the loss of the upstream")
        publish(writer, name, f"RDATA events w1 3 {EVENT % 3}")
        assert reader.message()[:17] == "RDATA events w1 3"
        replica.ask("POST", "/v1/promote", {"force": True})
        until = reader.message()
        while until != "REPLICATE ":
            until = reader.message()
        publish(writer, name, "POSITION events w1 3 3", f"RDATA events w1 4 {EVENT % 4}")
        assert [reader.message()[:17] for _ in range(2)] == ["POSITION events w", "RDATA events w1 4"]

        eventually(lambda: rows(replica) == [2, 4], "the rows in the log")
        # This writer can be asked nothing: what the log missed is lost, and counted.
        (lost,) = eventually(lambda: replica.status()["resp"]["lost"], "what is lost")
        assert ("events", "w1", 2, 3) == (lost["stream"], lost["writer"], lost["have"], lost["want"])
        for client in (reader, writer):
            client.close()


def test_processes_move_from_a_redis_one_by_one(tmp_path: Path) -> None:
    """Each line goes over once; a Redis that is lost is made up for by a position."""
    port = free_port()
    server = RedisServer()
    server.start()
    with Cluster(tmp_path) as cluster:
        options = ["--redis", server.url, "--resp", f"tcp:{port}:interface=127.0.0.1"]
        member = cluster.add("n0", *options)
        eventually(lambda: is_bridged(member), "the connections to Redis")
        name = member.status()["server_name"]
        there, here = Client(server.port), Client(port)
        there.subscribe(name)
        here.subscribe(name)
        on_redis, on_port = Client(server.port), Client(port)
        publish(on_redis, name, "POSITION events w1 1 1", f"RDATA events w1 2 {EVENT % 2}")
        publish(on_port, name, "POSITION events w2 2 2", f"RDATA events w2 3 {EVENT % 3}")
        wanted = {f"RDATA events w1 2 {EVENT % 2}", f"RDATA events w2 3 {EVENT % 3}"}
        for reader in (there, here):
            assert wanted == set(lines_until(reader, len(wanted)))
        eventually(lambda: rows(member) == [2, 3], "both rows in the log")

        server.kill()
        eventually(lambda: not is_bridged(member), "the loss of Redis")
        publish(on_port, name, f"RDATA events w2 4 {EVENT % 4}")
        assert lines_until(here, 1) == [f"RDATA events w2 4 {EVENT % 4}"]
        server.start()
        eventually(lambda: is_bridged(member), "the connections to Redis")
        again = Client(server.port)
        again.subscribe(name)
        publish(on_port, name, f"RDATA events w2 5 {EVENT % 5}")
        assert lines_until(again, 1) == [f"RDATA events w2 5 {EVENT % 5}"]

        # The writer moves: its old connection is gone, and it says its position at the new one.
        publish(on_port, name, "POSITION events w1 2 2", f"RDATA events w1 6 {EVENT % 6}")
        assert lines_until(again, 1) == lines_until(here, 2)[1:] == [f"RDATA events w1 6 {EVENT % 6}"]
        eventually(lambda: rows(member) == [2, 3, 4, 5, 6], "all rows in the log")
        assert member.status()["resp"]["lost"] == []
        for client in (there, here, on_redis, on_port, again):
            client.close()
    server.remove()


@pytest.mark.story
def test_with_tls_messages_come_over_tls(tmp_path: Path) -> None:
    """Not as plain text below it: lines go to plain sockets at once."""
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.sign("localhost")
    port = free_port()
    endpoint = f"tls:{port}:interface=127.0.0.1:certificate={certificate}:privateKey={key}"
    with Cluster(tmp_path) as cluster:
        member = cluster.add("n0", "--resp", endpoint)
        name = member.status()["server_name"]
        secure = {"ssl": True, "ssl_ca_certs": str(authority.ca_file), "host": "localhost"}
        reader, writer = Client(port, **secure), Client(port, **secure)
        reader.subscribe(name)
        publish(writer, name, "POSITION events w1 1 1", *(f"RDATA events w1 {n} {EVENT % n}" for n in (2, 3)))

        assert reader.message() == "POSITION events w1 1 1"
        assert [reader.message()[:17] for _ in range(2)] == ["RDATA events w1 2", "RDATA events w1 3"]
        reader.close()
        writer.close()
