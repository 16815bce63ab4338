"""A worker's program, for the type checker alone.

Where it says that an error is ignored, the checker would complain if there were none.
"""

from collections.abc import Sequence

from twisted.application.service import MultiService
from twisted.enterprise.adbapi import ConnectionPool
from twisted.internet.interfaces import IReactorTCP

import synrepl
from synrepl.errors import GapError
from synrepl.streams.catalog import RECEIPTS, TYPING, Receipt, Typing
from synrepl.wire.commands import RemoteServerUp


def program(reactor: IReactorTCP, app: MultiService, publisher: synrepl.Publisher) -> None:
    follower = synrepl.Follower(instance="pusher1")

    @follower.on(RECEIPTS)
    async def wake_pushers(updates: synrepl.Updates[Receipt]) -> None:
        for row in updates.rows:
            room: str = row.room_id
            thread: str | None = row.thread_id
            print(room, thread, updates.token)

    @follower.on(TYPING)
    def show(updates: synrepl.Updates[Typing]) -> None:
        users: list[str] = updates.rows[0].user_ids
        print(users)

    @follower.on(TYPING)  # type: ignore[arg-type]
    def wrong(updates: synrepl.Updates[Receipt]) -> None:
        pass

    @follower.on_batch(RECEIPTS, max_facts=100)
    async def wake_many_pushers(batch: Sequence[synrepl.Updates[Receipt]]) -> None:
        rooms: set[str] = {row.room_id for updates in batch for row in updates.rows}
        print(rooms)

    @follower.on_batch(RECEIPTS)  # type: ignore[arg-type]
    def wrong_batch(batch: Sequence[synrepl.Updates[Typing]]) -> None:
        pass

    @follower.on_batch(RECEIPTS)  # type: ignore[arg-type]
    def no_batch(updates: synrepl.Updates[Receipt]) -> None:
        pass

    @synrepl.row
    class Note:
        author: str
        text: str

    notes: synrepl.Stream[Note] = synrepl.Stream("notes", Note, key="author")
    mine: synrepl.StreamTable = synrepl.StreamTable.default() | {notes}
    Note(author="@ada:hs", text="hello")
    Note(author="@ada:hs")  # type: ignore[call-arg]

    service = synrepl.connect(reactor, "tcp:master:9092", follower, dialect=synrepl.CURRENT)
    service.setServiceParent(app)
    synrepl.serve(reactor, "tcp:9092:interface=127.0.0.1", publisher, server_name="hs").setServiceParent(app)
    at: dict[str, dict[str, int]] = follower.positions()
    print(at, mine, follower.caught_up(RECEIPTS, writer="master", token=54))


def watching(follower: synrepl.Follower) -> None:
    follower.on_everything(lambda updates: print(updates.stream))

    @follower.on_event
    def on_event(event: synrepl.FollowerEvent) -> None:
        print(event.kind, event.text)

    @follower.on_command(RemoteServerUp)
    def on_command(command: RemoteServerUp) -> None:
        print(command)

    instance: str = follower.instance
    table: synrepl.StreamTable = follower.table
    is_connected: bool = follower.is_connected
    lag: tuple[float, int] = (follower.lag_seconds(), follower.lag_rows())
    gaps: list[GapError] = follower.gaps()
    lost: list[tuple[float, GapError]] = follower.lost_gaps
    blocked: list[str] = follower.waiting_streams()
    print(instance, table, is_connected, lag, gaps, lost, blocked)
    follower.send(RemoteServerUp(server="hs"))
    follower.stop()
    follower.received([])  # type: ignore[attr-defined]


async def remembering(follower: synrepl.Follower) -> None:
    caches = synrepl.Caches()
    vintage: synrepl.Vintage = synrepl.Vintage.of(synrepl.LEGACY, "1.163")
    given = synrepl.Caches(vintage=vintage.extended("mine"))
    print(given)

    @caches.cached(max_entries=100)
    async def get_topic(room_id: str) -> str | None:
        return room_id

    @caches.cached(tree=True)
    def count_members(room_id: str, kind: str) -> int:
        return len(room_id + kind)

    topic: str | None = await get_topic("!r:hs")
    members: int = count_members("!r:hs", "join")
    await get_topic(3)  # type: ignore[arg-type]
    print(topic, members)
    await follower.wait_for(RECEIPTS, {"master": 54}, timeout=5)


async def writing(ids: synrepl.MultiWriterIdGenerator, pool: ConnectionPool) -> None:
    async with ids.next() as token:
        one: int = token
    async with ids.next_many(3, owner="persist_events") as tokens:
        first: int = tokens[0]
    print(one, first, ids.persisted_upto)
