"""A replica behind a proxy that passes on nothing but HTTP: the native conversation needs no more."""

from pathlib import Path
from typing import Final

from tests.processes.http_proxy import HttpProxy
from tests.processes.loading import Asker
from tests.processes.replicas import Cluster, Load, Member, fill

WANTED: Final = "receipts"


def wanted(member: Member) -> list[bytes]:
    """The facts of the stream that the replica has."""
    with Asker(member.url) as asker:
        return asker.ask("GET", f"/v1/changelog?streams={WANTED}").splitlines()


def test_a_filtered_replica_follows_through_a_proxy_that_is_cut(tmp_path: Path) -> None:
    """It joins, follows, is cut off while facts come, comes back, and is as its primary in the end."""
    (tmp_path / "primary").mkdir()
    fill(tmp_path / "primary" / "synrepl.db", 3_000, streams=(WANTED, "events"))
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        with HttpProxy(primary.url) as proxy:
            options = ("--upstream-streams", WANTED)
            replica = cluster.add("replica", *options, upstream=proxy.url)
            cluster.wait_until_same()
            joined = len(wanted(replica))
            with Load([primary, primary]) as load:
                for _ in range(3):
                    load.wait_for(50)
                    replica.wait_for(lambda told: told["upstream"]["state"] == "live", "following")
                    proxy.cut()
                load.wait_for(50)
            cluster.wait_until_same()
            found, expected = wanted(replica), wanted(primary)
            opened = proxy.requests.count(("POST", "/v1/native"))

    assert joined == 1_500
    assert len(found) > joined
    assert found == expected
    assert opened >= 4


def test_a_proxy_that_repeats_requests_changes_nothing(tmp_path: Path) -> None:
    """What a replica sends is handled once: a command that came twice would be an error of its protocol."""
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        with HttpProxy(primary.url) as proxy:
            replica = cluster.add("replica", upstream=proxy.url)
            cluster.wait_until_same()
            replica.wait_for(lambda told: told["upstream"]["state"] == "live", "following")
            opened = proxy.requests.count(("POST", "/v1/native"))
            proxy.repeats = True
            with Load([primary, primary]) as load:
                load.wait_for(100)
            cluster.wait_until_same()
            again = proxy.requests.count(("POST", "/v1/native"))
            posted = proxy.requests.count(("POST", "/v1/native/bytes"))

    assert again == opened
    assert posted > 5


def test_a_primary_that_stops_says_so_through_the_proxy(tmp_path: Path) -> None:
    """As to replicas at its native port: nobody need look for a fault on the way."""
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        with HttpProxy(primary.url) as proxy:
            replica = cluster.add("replica", upstream=proxy.url)
            replica.wait_for(lambda told: told["upstream"]["state"] == "live", "following")
            primary.stop()
            replica.daemon.wait_for("ERROR from the upstream: server shutting down")
