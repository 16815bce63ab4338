"""Bugs of POSITION lines, and of rows that share a token."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.replication.follower.updates import Updates
from synrepl.testing import Cluster, MemoryPositions
from synrepl.wire.codec import MAX_LENGTH
from synrepl.wire.dialect import CURRENT
from tests.http.builders import SiteCase, receipt
from tests.raw_peer import raw_client
from tests.replication.follower.test_strategy import TABLE, Setup, rows
from tests.replication.serving.test_strategy import append, client


def test_a_position_does_not_overtake_queued_rows() -> None:
    """Case 4, Synapse #16639: POSITION was handled before rows queued ahead of it, which caused a needless
    fetch.

    Here: the follower handles both in order: no extra fetch, and no row is applied twice.
    """
    setup = Setup(CURRENT, "push_rules")
    applied: list[int] = []
    busy: list[Deferred[None]] = []

    @setup.follower.on(TABLE["to_device"])
    async def apply(updates: Updates[Any]) -> None:
        busy.append(Deferred())
        await busy[-1]
        applied.append(updates.token)

    setup.hears("POSITION to_device master 1 1", *rows(2, 4), "POSITION to_device master 4 4")
    before = list(applied)
    while busy:
        busy.pop().callback(None)
        setup.wait()

    assert ([], [2, 3, 4]) == (before, applied)
    assert [] == setup.fake_catch_up.asked
    assert {"master": 4} == setup.follower.positions()["to_device"]


@pytest.mark.parametrize(
    ("position", "asked", "reached"),
    [
        ("10 10", [], 10),
        ("8 12", [], 12),
        ("10 15", [], 15),
        ("12 20", [(10, 20)], 20),
        ("4 4", [(0, 4)], 4),
    ],
    ids=["same", "overlap", "next", "gap", "back"],
)
def test_a_position_is_fetched_for_only_if_it_shows_a_gap(
    position: str, asked: list[tuple[int, int]], reached: int
) -> None:
    """Case 5, Synapse #16555 and #16560: a POSITION without news caused a fetch in every worker.

    Here: a table test covers all five relations of the previous and the new token to the current one.
    """
    positions = MemoryPositions()
    positions.save({"to_device": {"master": 10}})
    setup = Setup(CURRENT, "to_device", positions=positions)

    setup.hears(f"POSITION to_device master {position}")

    assert asked == [(after, upto) for _, _, after, upto in setup.fake_catch_up.asked]
    assert {"master": reached} == setup.follower.positions()["to_device"]


class TokenTests(SiteCase):
    """Rows of one token, in pages."""

    def test_a_page_limit_never_splits_a_token(self) -> None:
        """Case 6, Synapse #7286 and #15349: a page limit split the rows of one token. The rest was never
        read.

        Here: for every limit, successive pages have every token exactly once, with all its rows.
        """
        sizes = [3, 1, 4, 1, 5]
        for size in sizes:
            self.post("receipts", *[[receipt(f"@u{number}:h") for number in range(size)]])
        whole = [token for token, size in enumerate(sizes, start=1) for _ in range(size)]

        for limit in range(1, sum(sizes) + 2):
            read: list[int] = []
            after, is_limited = 0, True
            while is_limited:
                path = f"/v1/streams/receipts/rows?writer=master&from={after}&limit={limit}"
                page = self.get(path).json()
                read += [token for token, _ in page["updates"]]
                after, is_limited = page["upto"], page["limited"]
            self.assertEqual(whole, read, f"limit {limit}")


def test_a_follower_far_behind_converges_while_writes_go_on() -> None:
    """Case 7, Synapse #4963: a worker more than 10,000 rows behind was disconnected each time it connected.

    Here: it gets all of them, in order, while new ones are written, and is never disconnected.
    """
    one = Cluster(ring_bytes=50_000)
    for start in range(0, 11_000, 1000):
        append(one, "to_device", *[[[f"@u{start + number}:hs"]] for number in range(1000)])
    peer = client(one, "REPLICATE to_device 0")

    for _ in range(20):
        append(one, "to_device", [["@more:hs"]])
    one.settle(15)

    told = [int(line.split()[2]) for line in peer.hears() if line.startswith("RDATA")]
    assert list(range(1, 11_021)) == told
    assert peer.is_connected


def test_a_row_one_byte_too_long_stops_nobody() -> None:
    """Case 8, Synapse #6327: a row beyond the limit of a line raised an error and stopped the stream.

    Here: a row at the limit is sent. A row one byte longer is replaced by a POSITION, which makes followers
    fetch it. The rows after it follow.
    """
    one = Cluster()
    peer = raw_client(one.network, "daemon", "raw")
    one.settle(0.1)
    peer.says("REPLICATE")
    one.settle(0.1)
    peer.hears()
    exact = MAX_LENGTH - len('RDATA to_device master 1 [""]')

    append(one, "to_device", [["a" * exact]], [["b" * (exact + 1)]], [["@c:hs"]])

    first, *others = peer.hears()
    assert MAX_LENGTH == len(first)
    assert ["POSITION to_device master 2 2", 'RDATA to_device master 3 ["@c:hs"]'] == others
