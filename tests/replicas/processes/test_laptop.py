"""A replica on a laptop: over HTTP, with a filter, away for long, and with files only when somebody asks."""

import time
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.processes.channel import eventually
from tests.processes.loading import Asker, Refused, report, size
from tests.processes.replicas import Cluster, Member, fill

AWAY: Final = size(5_000, 100_000)
"""Facts of all streams that come while it is away."""

STREAMS: Final = ("events", "to_device", "receipts", "push_rules", "device_lists")
"""One fact in five is wanted."""

WANTED: Final = "receipts"
FACTOR: Final = 1.15
"""What catching up may cost over the lines of the facts that are wanted; whatever else there is counts
nothing. Beside the lines there are headers of HTTP, a heartbeat a second, and the greeting."""

BESIDE_BYTES: Final = 20_000
FILE: Final = b"a picture" * 100_000


def laptop(cluster: Cluster, primary: Member) -> Member:
    """It takes one stream, and what files there are."""
    return cluster.add(
        "laptop",
        *("--upstream-streams", f"{WANTED},files", "--fetch-files", "lazy", "--timeout-seconds", "10"),
        upstream=primary.front_url,
    )


def wanted(member: Member, after: int) -> list[bytes]:
    """The lines of a changelog that it asks for."""
    with Asker(member.url) as asker:
        path = f"/v1/changelog?since={after}&streams={WANTED},files"
        return asker.ask("GET", path).splitlines()


def test_a_laptop_catches_up_at_the_cost_of_what_it_wants(tmp_path: Path) -> None:
    """It may be on a train: what it has no interest in is not sent."""
    begun = time.monotonic()
    (tmp_path / "primary").mkdir()
    database = tmp_path / "primary" / "synrepl.db"
    fill(database, 100, streams=STREAMS)
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = laptop(cluster, primary)
        cluster.wait_until_same()
        replica.stop()
        before = primary.status()["serial"]
        primary.stop()
        fill(database, AWAY, streams=STREAMS)
        primary.start()
        link = primary.http
        at = link.down
        replica.start()
        started = time.monotonic()
        cluster.wait_until_same()
        seconds = time.monotonic() - started
        cost = link.down - at
        lines = wanted(primary, before)
        bytes_wanted = sum(map(len, lines)) + len(lines)
        with Asker(primary.url) as asker:
            everything = len(asker.ask("GET", f"/v1/changelog?since={before}"))
        assert wanted(replica, 0) == wanted(primary, 0)
        assert len(lines) == AWAY // len(STREAMS)
    report(
        f"laptop: {AWAY} facts while it was away, {len(lines)} wanted; {cost} bytes came,"
        f" {cost / bytes_wanted:.2f} times those of the facts, {cost / everything:.2f} of the whole log's,"
        f" in {seconds:.2f} s; {time.monotonic() - begun:.1f} s"
    )
    assert cost <= FACTOR * bytes_wanted + BESIDE_BYTES


def test_a_file_is_fetched_when_somebody_wants_it(tmp_path: Path) -> None:
    """And not before; then it is whole, and there also without the primary."""
    begun = time.monotonic()
    name = sha256(FILE).hexdigest()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = laptop(cluster, primary)
        with Asker(primary.url) as asker:
            asker.ask("PUT", f"/v1/files/sha256/{name}", FILE)
            asker.post("files", [[["create", "picture", name, len(FILE)]]])
        cluster.wait_until_same()
        assert replica.status()["files"]["wanted"] == 0
        assert _stored(replica) == [], "it was fetched although nobody asked"
        at = primary.http.down
        assert at < len(FILE), "it came although nobody asked"
        with Asker(replica.url) as asker:
            assert asker.ask("GET", f"/v1/files/sha256/{name}") == FILE
        assert [path.stat().st_size for path in _stored(replica)] == [len(FILE)]
        came = primary.http.down - at
        with primary.http.broken(), primary.native.broken(), Asker(replica.url) as asker:
            assert asker.ask("GET", f"/v1/files/sha256/{name}") == FILE
    assert came < 1.1 * len(FILE), "it came more than once"
    report(f"laptop: a file of {len(FILE)} bytes cost {came}; {time.monotonic() - begun:.1f} s")


def test_a_file_that_is_wanted_over_a_bad_link_comes_right(tmp_path: Path) -> None:
    """Cut off and changed on the way: what is served is what was put there."""
    begun = time.monotonic()
    name = sha256(FILE).hexdigest()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = cluster.add("replica", upstream=primary.front)
        with Asker(primary.url) as asker:
            asker.ask("PUT", f"/v1/files/sha256/{name}", FILE)
            primary.http.flip(4)
            primary.http.cut_after(len(FILE) // 2)
            asker.post("files", [[["create", "picture", name, len(FILE)]]])
        eventually(lambda: not primary.http.is_to_be_cut, replica.describe)
        eventually(lambda: primary.http.flipped, replica.describe)
        primary.http.flip(0)

        def fetched() -> bytes | None:
            try:
                with Asker(replica.url) as asker:
                    return asker.ask("GET", f"/v1/files/sha256/{name}?wait=1")
            except Refused as refused:
                if refused.status != 503:
                    raise
                return None

        assert eventually(fetched, replica.describe) == FILE
    report(f"a file over a bad link: {time.monotonic() - begun:.1f} s")


def _stored(member: Member) -> list[Path]:
    """The files by checksum that it has."""
    return [path for path in (member.folder / "synrepl.db.files" / "sha256").rglob("*") if path.is_file()]
