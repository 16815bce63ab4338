"""Archives for tests, written as the archive job writes them, without Spark and without a daemon."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from synrepl.base import checked_json
from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.archive import BatchCommitter, LogIdentity
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.row_files import WrittenFile, write_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.archive.table_commits import END, LINK, read_end
from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.snapshot.snapshot import LAST, read_snapshot
from synrepl.pipeline.source.rows import FACTS, ROWS, explode
from synrepl.pipeline.store import Store
from synrepl.streams.digest import EMPTY, chain
from synrepl.streams.facts import Fact
from tests.service.processes import ROOT

DAY_MS = 24 * 3600 * 1000
ARCHIVED_MS = 2_000
LONG_AGO = 1_600_000_000
BEGAN_MS = 1_795_219_200_000  # 2026-11-21T00:00:00Z

Given = tuple[str, str, list[list[Any]]]
"""A fact to be: stream, writer, rows."""


def chained(given: Iterable[Given], *, step_ms: int = 60_000, after: Sequence[Fact] = ()) -> list[Fact]:
    """Facts as a log gives them: serials, tokens and digests follow from those `after` which they come."""
    facts: list[Fact] = []
    digest = after[-1].digest if after else EMPTY
    serial = after[-1].serial if after else 0
    tokens: dict[tuple[str, str], int] = {}
    heads: dict[str, int] = {}
    for fact in after:
        tokens[fact.stream, fact.writer] = fact.token
        heads[fact.stream] = max(fact.token, heads.get(fact.stream, 0))
    for stream, writer, rows in given:
        serial += 1
        token = heads.get(stream, 0) + 1
        made: dict[str, Any] = {
            "serial": serial,
            "epoch": 1,
            "stream": stream,
            "writer": writer,
            "prev_token": tokens.get((stream, writer), 0),
            "token": token,
            "committed_at_ms": BEGAN_MS + serial * step_ms,
            "rows": msgspec.json.encode(rows),
        }
        digest = chain(digest, **made)
        tokens[stream, writer] = heads[stream] = token
        facts.append(Fact(**made, digest=digest))
    return facts


def restored(facts: Sequence[Fact], given: Iterable[Given]) -> tuple[list[Fact], EpochStart]:
    """The same log, restored after these facts: others follow in epoch 2."""
    found = list(facts)
    for fact in chained(given, after=facts):
        names = "serial", "stream", "writer", "prev_token", "token", "committed_at_ms", "rows"
        made: dict[str, Any] = {name: getattr(fact, name) for name in names} | {"epoch": 2}
        found.append(Fact(**made, digest=chain(found[-1].digest, **made)))
    return found, EpochStart(2, facts[-1].serial, facts[-1].digest, 1, "restored")


def batch_of_facts(facts: Sequence[Fact]) -> Any:
    """Facts as the record batch that a daemon answers."""
    columns = []
    for field in FACTS:
        values = [getattr(fact, field.name) for fact in facts]
        columns.append(pa.array([v.decode() if isinstance(v, bytes) else v for v in values], field.type))
    return pa.record_batch(columns, schema=FACTS)


def counted_by_the_manual(position: Path) -> list[tuple[str, int]]:
    """What the manual's own query says of an archive: the lines of each stream.

    DuckDB needs an extension for `delta_scan`, which tests do not download: delta-rs gives the files.
    """
    page = ROOT / "docs" / "howto" / "pipeline.md"
    query = page.read_text("utf-8").partition("```sql\n")[2].partition("```")[0]
    connection = duckdb.connect()
    connection.register("archive", DeltaTable(position).to_pyarrow_dataset())
    return connection.execute(query.replace("delta_scan('archive')", "archive")).fetchall()


LOG = LogIdentity("history-of-tests", "localhost")


def write_facts(store: Store, facts: Sequence[Fact]) -> list[WrittenFile]:
    """The files of these facts, as one task writes them."""
    return list(write_files(store, [KeyExtractor().with_keys(explode(batch_of_facts(facts)))]))


def archive(
    position: str, facts: Sequence[Fact], *, batch_facts: int = 100, epoch_starts: Sequence[EpochStart] = ()
) -> list[Batch]:
    """A new archive of these facts, so many to a batch."""
    store = Store(position)
    committer = BatchCommitter(store, LOG)
    for first in range(0, len(facts), batch_facts):
        some = facts[first : first + batch_facts]
        committer.commit(
            write_facts(store, some),
            epoch_starts=epoch_starts,
            now_ms=some[-1].committed_at_ms + ARCHIVED_MS,
        )
    return ArchiveTable(store).batches()


def paths_of(position: Path | str) -> list[str]:
    """The files of an archive, in order of serial."""
    paths: list[str] = ArchiveTable(Store(str(position))).files["path"].to_pylist()
    return paths


LARGE_STREAMS = ("receipts", "events", "caches", "push_rules")


def large_archive(
    position: Path | str,
    count: int,
    *,
    batch_facts: int = 200_000,
    streams: Sequence[str] = LARGE_STREAMS,
    users: int = 777,
) -> None:
    """A new archive of so many facts of one row, in turn of these streams.

    The rows of receipts and of events have keys of their own, those of caches none; those of push rules have
    the keys of so many `users`. By default almost half of the rows have a key of their own.
    """
    store = Store(str(position))
    committer, extractor = BatchCommitter(store, LOG), KeyExtractor()
    digest, tokens = EMPTY, dict.fromkeys(streams, 0)
    for first in range(1, count + 1, batch_facts):
        lines: list[tuple[Any, ...]] = []
        for serial in range(first, min(first + batch_facts, count + 1)):
            stream = streams[serial % len(streams)]
            row, at_ms = large_row(stream, serial, users), BEGAN_MS + serial * 10
            before, tokens[stream] = tokens[stream], tokens[stream] + 1
            # `chain`, inlined: a call for each of ten million facts takes long.
            text = f"{digest} {serial} 1 {stream} w {before} {before + 1} {at_ms} {row}"
            digest = sha256(text.encode()).hexdigest()
            lines.append((serial, 1, stream, "w", before, before + 1, row, at_ms, digest))
        columns = [
            pa.array(of, field.type) for of, field in zip(zip(*lines, strict=True), FACTS, strict=True)
        ]
        rows = extractor.with_keys(explode(pa.record_batch(columns, FACTS)))
        committer.commit(list(write_files(store, [rows])), now_ms=at_ms + ARCHIVED_MS)


def large_row(stream: str, serial: int, users: int) -> str:
    """The rows of a fact of a large archive."""
    user, room = serial % 7_777, serial % 1_000
    match stream:
        case "receipts":
            return f'[["!r{room}:h","m.read","@u{user}:h","$e{serial}",null,{{"ts":{serial}}}]]'
        case "events":
            fields = f'"$e{serial}:h","!r{room}:h","m.room.message",null,null,null,null,false,false'
            return f'[["ev",[{fields}]]]'
        case "caches":
            return f'[["get_rooms_for_user",["@u{user}:h"],{serial}]]'
        case _:
            return f'[["@u{serial % users}:h"]]'


def rows_of_archive(position: Path | str) -> Any:
    """All rows of an archive, with all columns, as one Arrow table in order of serial and seq."""
    store = Store(str(position))
    found = [read_rows(store, path, ROWS) for path in paths_of(position)]
    rows = pa.concat_tables(found) if found else ROWS.empty_table()
    return rows.sort_by([("serial", "ascending"), ("seq", "ascending")]).combine_chunks()


def rows_of_snapshot(position: Path | str) -> Any:
    """All rows of a snapshot, with all columns, as one Arrow table in the order of its files."""
    store = Store(str(position))
    snapshot = read_snapshot(store)
    assert snapshot is not None
    found = []
    for file in snapshot.files:
        assert (file.sha256, file.bytes) == (store.sha256(file.path), store.size(file.path))
        found.append(read_rows(store, file.path, LAST))
    return (pa.concat_tables(found) if found else LAST.empty_table()).combine_chunks()


def read_rows(store: Store, path: str, schema: Any) -> Any:
    """The rows of a file."""
    with store.open(path) as source:
        return pq.ParquetFile(source).read().cast(schema)


def clean_up(place: Path, *, all_commits: bool = False) -> list[str]:
    """Make a checkpoint, and remove the commits below it, or that of the checkpoint as well."""
    log = place / "_delta_log"
    for file in log.iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    DeltaTable(place).create_checkpoint()
    DeltaTable(place).cleanup_metadata()
    for file in log.glob("*.json") if all_commits else ():
        file.unlink()
    return sorted(file.name for file in log.glob("*.json"))


def forget_checksums(place: Path) -> None:
    """Leave the log of an archive as releases up to 26.11.1 do, which wrote no checksums of it."""
    for path in (place / "_delta_log").glob("*.json"):
        path.write_bytes(re.sub(rb',"synreplLog":\{[^}]*\}|"synreplLog":\{[^}]*\},', b"", path.read_bytes()))
        assert b"synreplLog" not in path.read_bytes()
    end = msgspec.json.decode((place / END).read_bytes(), type=Batch)
    (place / END).write_bytes(msgspec.json.encode(end))


def correct_checksums(place: Path) -> None:
    """Let the log of an archive have the checksums of what it is now: it was changed on purpose."""
    log = place / "_delta_log"

    def found(names: Iterable[str]) -> dict[str, str]:
        return {name: sha256((log / name).read_bytes()).hexdigest() for name in names}

    for path in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            info = action.get("commitInfo", {})
            info[LINK] = found(info.get(LINK, {}))
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    end = read_end(Store(str(place)))
    assert end is not None
    (place / END).write_bytes(checked_json.encode(msgspec.structs.replace(end, log=found(end.log))))
