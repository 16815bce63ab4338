"""A cluster in memory, used as the author of a worker uses it."""

import pytest

import synrepl
from synrepl.errors import RowError
from synrepl.streams.catalog import EVENTS, RECEIPTS, Event, PushRules, Receipt
from synrepl.testing import Cluster, MemoryPositions
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, Dialect


def receipt(number: int) -> Receipt:
    return Receipt(
        room_id="!r:hs",
        receipt_type="m.read",
        user_id=f"@u{number}:hs",
        event_id=f"$e{number}",
        thread_id=None,
        data={},
    )


@pytest.mark.parametrize("dialect", [CURRENT, MIDDLE, LEGACY], ids=str)
def test_latest_delivers_nothing_that_any_writer_wrote_before(dialect: Dialect) -> None:
    """A pusher would notify old receipts again."""
    cluster = Cluster()
    for writer in ("w1", "master", "w2"):
        cluster.append("receipts", receipt(1), receipt(2), writer=writer)

    worker = cluster.worker(streams=[RECEIPTS], dialect=dialect)
    assert worker.applied == []
    cluster.append("receipts", receipt(3), writer="w1")

    assert [updates.rows for updates in worker.applied] == [[receipt(3)]]


def test_typed_rows_are_appended_as_their_json_is() -> None:
    """The order of the fields of a row need not be known, nor how a kind of row is tagged."""
    cluster = Cluster()
    worker = cluster.worker(streams=[EVENTS, RECEIPTS])
    event = Event(
        event_id="$e", room_id="!r:hs", type="m.room.name", state_key="", redacts=None, relates_to=None,
        membership=None, rejected=False, outlier=False,
    )  # fmt: skip

    cluster.append("events", event)
    cluster.append("events", ["ev", ["$e", "!r:hs", "m.room.name", "", None, None, None, False, False]])

    assert [updates.rows for updates in worker.applied] == [[event], [event]]


def test_a_publisher_appends_typed_rows() -> None:
    """A program that serves a log of its own writes to it through its publisher."""
    cluster = Cluster()
    worker = cluster.worker(streams=[RECEIPTS])

    cluster.daemon.publisher.append("receipts", [[receipt(1), receipt(2)], [receipt(3)]])
    cluster.settle()

    assert [(updates.writer, updates.rows) for updates in worker.applied] == [
        ("master", [receipt(1), receipt(2)]),
        ("master", [receipt(3)]),
    ]


def test_a_row_of_another_stream_is_refused() -> None:
    """It could look like a row of this one."""
    with pytest.raises(RowError, match="PushRules is not a row of this stream"):
        Cluster().append("receipts", PushRules(user_id="@ada:hs"))


def test_a_follower_of_ones_own_is_connected_and_killed() -> None:
    """As `worker` does for those that it makes."""
    cluster = Cluster()
    positions = MemoryPositions()
    seen: list[int] = []

    def make() -> synrepl.Follower:
        follower = synrepl.Follower(instance="mine", positions=positions, start="earliest")
        follower.on(RECEIPTS)(lambda updates: seen.append(updates.token))
        return follower

    cluster.append("receipts", receipt(1))
    worker = cluster.follower(make())
    assert seen == [1]
    worker.kill()
    cluster.append("receipts", receipt(2))
    assert seen == [1]
    again = cluster.follower(make())

    assert seen == [1, 2]
    assert again.links()
    again.stop()
    assert positions.saved["receipts"] == {"master": 2}
