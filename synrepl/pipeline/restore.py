"""Restores an empty log from a snapshot that the pipeline made (``synrepl pipeline compact``)."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from twisted.logger import Logger

from synrepl.base.history import EpochStart, LogSnapshot
from synrepl.base.notes import YES
from synrepl.base.settings import UNNAMED
from synrepl.daemon.parts import DaemonParts
from synrepl.errors import ConfigError, StorageError
from synrepl.pipeline.archive.row_files import open_verified_rows
from synrepl.pipeline.settings import snapshot_of
from synrepl.pipeline.snapshot.snapshot import DAMAGED, PartFile, SnapshotManifest, read_snapshot
from synrepl.pipeline.source.rows import COLUMNS
from synrepl.pipeline.store import Store
from synrepl.rooms import rooms
from synrepl.storage.log import Log
from synrepl.storage.staged_copy import StagedCopy
from synrepl.storage.threads import ReactorThread
from synrepl.storage.token_floor import floor_above, floor_of
from synrepl.streams.facts import Fact
from synrepl.streams.positions import VClock
from synrepl.streams.writer import Writer
from synrepl.wire import jsontext

COMMIT_FACTS: Final = 8_000
PROGRESS_SECONDS: Final = 5.0

FACTS: Final = [name for name in COLUMNS if name not in ("seq", "key")]
"""The columns of a snapshot's file that facts are made of."""

_logger = Logger(namespace="synrepl.pipeline.restore")


async def restore(daemon: DaemonParts) -> None:
    """Restore the snapshot of the settings into the log of a daemon that is starting, if that is empty."""
    settings, log = daemon.settings, daemon.log
    location = snapshot_of(settings)
    assert location is not None
    await restore_snapshot(
        log,
        location,
        daemon.reactor,
        server_name=settings.expected_name(log.notes),
        is_replica=any(room.role_of(settings) for room in rooms()),
    )


async def restore_snapshot(
    log: Log, location: str, reactor: Any, *, server_name: str | None, is_replica: bool
) -> None:
    """Restore the snapshot at `location` (a folder or URI) into this log.

    The log then continues at the position of the snapshot. A log that has facts, or was a copy before, is
    left unchanged. A primary begins a new epoch (``restored``): other daemons may know later facts, which are
    not part of this history. Without a `server_name` (None) the log stores that of the snapshot, if any.
    Raises `ConfigError` or `StorageError` if the snapshot cannot be restored; the log then stays empty.
    """
    if log.head.serial or log.notes.get("joined") is not None:
        _logger.info(
            "--snapshot is ignored: the log is not new, it is at serial {serial}", serial=log.head.serial
        )
        return
    seconds = reactor.seconds
    store = Store(location)
    thread = ReactorThread(reactor, "reading a snapshot")
    copy: StagedCopy | None = None
    try:
        snapshot = await thread.run(lambda: _checked(store, server_name))
        copy = await log.copies.open_staged()
        if copy.position.serial:
            # The remains of an interrupted restore or join.
            await log.copies.drop(copy)
            copy = await log.copies.open_staged()
        began = logged = seconds()
        done = 0
        for part in snapshot.files:
            facts = await thread.run(lambda part=part: _read(store, part))  # type: ignore[misc]
            for first in range(0, len(facts), COMMIT_FACTS):
                some = facts[first : first + COMMIT_FACTS]
                await copy.add(some, some[-1].position, trimmed_upto=snapshot.position)
                done += len(some)
                if seconds() - logged >= PROGRESS_SECONDS:
                    logged = seconds()
                    left = (snapshot.facts - done) * (logged - began) / done
                    _logger.info(
                        "restoring the snapshot: {done} of {facts} facts, {left:.0f} seconds left",
                        done=done,
                        facts=snapshot.facts,
                        left=left,
                    )
        await copy.restore(
            LogSnapshot(
                position=snapshot.position,
                trimmed_upto=snapshot.position,
                epoch_starts=snapshot.epoch_starts,
                positions={
                    Writer(stream, writer): token
                    for stream, writer, token in VClock.from_json(snapshot.clock)
                },
                receipts=(),
            )
        )
        if not is_replica:
            # In the copy: a kill must not leave the log in the old epoch.
            await copy.begin_epoch(
                EpochStart(
                    epoch=snapshot.position.epoch + 1,
                    serial=snapshot.position.serial,
                    digest=snapshot.position.digest,
                    at_ms=int(seconds() * 1000),
                    why="restored",
                )
            )
            # Before the log is there: a kill must not leave it without.
            tokens = [token for _, _, token in VClock.from_json(snapshot.clock)]
            await log.note(floor=str(max(floor_of(log.notes), floor_above(tokens, seconds()))))
        await copy.note(history=snapshot.history, joined=YES, filter=None, joining=None)
        if server_name is None and snapshot.server_name != UNNAMED:
            await log.note(server_name=snapshot.server_name)
        await log.copies.adopt(copy)
    except BaseException:
        if copy is not None:
            await copy.close()
        raise
    finally:
        await thread.stop()
    _logger.info(
        "restored the snapshot {location}, at serial {serial}", location=location, serial=log.head.serial
    )


def _checked(store: Store, server_name: str | None) -> SnapshotManifest:
    """Return the snapshot if it is the one of this server. Runs in a thread."""
    snapshot = read_snapshot(store)
    if snapshot is None:
        raise ConfigError(f"{store} has no snapshot; synrepl pipeline compact makes one")
    if server_name not in (None, snapshot.server_name):
        why = f"{store} is a snapshot of {snapshot.server_name}, not of {server_name}"
        raise ConfigError(f"{why}: choose another snapshot, or correct --server-name")
    return snapshot


def _read(store: Store, part: PartFile) -> list[Fact]:
    """The facts of a file, in order. Runs in a thread. Raises `BadArchive` if it is damaged."""
    with open_verified_rows(store, part.path, part.sha256, DAMAGED) as file:
        found = list(_facts(file))
    if len(found) != part.facts:
        why = f"{store}: {part.path} has {len(found)} facts, but the snapshot counts {part.facts}"
        raise StorageError(op="restore", why=why)
    return found


def _facts(file: Any) -> Iterator[Fact]:
    lines = (
        line
        for batch in file.iter_batches(columns=FACTS)
        for line in zip(
            *(
                (batch[name].cast("int64") if name == "committed_at" else batch[name]).to_pylist()
                for name in FACTS
            ),
            strict=True,
        )
    )
    for _, fact in groupby(lines, key=lambda line: line[0]):
        rows = list(fact)
        serial, epoch, stream, writer, prev_token, token, _, at_us, digest = rows[0]
        text = jsontext.join(line[6].encode() for line in rows if line[6] is not None)
        yield Fact(serial, epoch, stream, writer, prev_token, token, text, at_us // 1000, digest)
