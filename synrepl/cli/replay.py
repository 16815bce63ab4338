"""``synrepl replay``: append the rows of a recorded session as new facts."""

import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import click
import msgspec

from synrepl.cli.append import BATCH, PATIENCE_SECONDS, POST_SECONDS, post_facts
from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import (
    DaemonTarget,
    Output,
    daemon_options,
    dialect_option,
    output_option,
    send,
    speed_option,
)
from synrepl.cli.progress import Advance
from synrepl.cli.recordings import RecordedFacts, Recording, read, read_bytes
from synrepl.cli.tables import table
from synrepl.errors import ConfigError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.routes import DECLARE, DECLARED
from synrepl.http_client import BlockingClient
from synrepl.streams.catalog import DECLARATIONS
from synrepl.streams.declaration import Declaration, stream_of
from synrepl.streams.declared import StreamBody, undeclared
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.dialect import Dialect

BATCH_BYTES: Final = 4 * 1024 * 1024


@click.command(cls=CliCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@daemon_options(required=True, retry=True)
@dialect_option(
    default=None, help="The dialect of the recorded master [default: detected from the recording]"
)
@click.option(
    "--connection",
    metavar="cN",
    help="The connection to replay from a proxy's recording [default: the first with rows]",
)
@speed_option("recorded")
@click.option(
    "--name",
    help="The name of the replay: a repeat under the same name within a day stores no fact twice"
    " [default: made from the content of FILE]",
)
@output_option("The summary as JSON.")
def replay(
    file: Path,
    daemon: DaemonTarget,
    dialect: Dialect | None,
    connection: str | None,
    speed: float,
    name: str | None,
    output: Output,
) -> None:
    """Append the rows of the recorded session FILE as new facts.

    FILE may also contain facts as JSON lines: the changelog, or the file to which a replica wrote the facts
    that only it had. Such facts keep their writers. Repeated rows are appended too, in order, the rows of a
    fact together; the recorded tokens are not kept. A row that cannot be parsed is skipped and reported on
    standard error, and the exit code is then 1.

    Streams that FILE declares are declared first. The other facts of a daemon's own state (promises,
    atomic_appends) are skipped and counted. What the daemon refuses is found before anything is stored.
    """
    client = daemon.connect(POST_SECONDS)
    data = read_bytes(file)
    recording = read(data, StreamTable.default(), dialect=dialect, connection=connection)
    if not (recording.facts or recording.bad or recording.own):
        raise CliError(f"{file} contains no rows" + (f" of connection {connection}" if connection else ""))
    try:
        known = _declared_by(daemon) if recording.bad or recording.declarations else []
        new = undeclared(known, recording.declarations.values())
    except ConfigError as error:
        raise CliError(f"{file}: {error}; nothing was stored") from error
    if known:
        streams = StreamTable.default() | map(stream_of, known)
        recording = read(data, streams, dialect=dialect, connection=connection)
    for bad in recording.bad:
        click.echo(f"{file}, line {bad.number}: skipped a row of {bad.stream}: {bad.why}", err=True)
    for stream, count in _skipped(recording).items():
        click.echo(f"skipped {count} facts of {stream}: each daemon writes its own", err=True)
    # A repeat of the same content has the same keys.
    name = (
        name
        or f"replay-{hashlib.sha256(data + repr((connection, recording.dialect.name)).encode()).hexdigest()}"
    )
    began = time.monotonic()
    stored = 0
    try:
        _prepare(client, daemon, recording, new, name)
        with Advance(f"replaying {file.name}", len(recording.facts)) as advance:
            for facts in _requests(recording.facts, speed):
                first = recording.facts[0].at
                if speed and facts[0].at is not None and first is not None:
                    time.sleep(max(0.0, began + (facts[0].at - first) / speed - time.monotonic()))
                texts = [jsontext.join(fact.rows) for fact in facts]
                delays = daemon.retry_delays(PATIENCE_SECONDS)
                key = f"{name}/{facts[0].number}"
                post_facts(client, facts[0].stream, texts, delays, writer=facts[0].writer, key=key)
                stored += len(facts)
                advance.step(len(facts), len(facts))
    except HttpError as error:
        raise CliError(f"{error.message}; {stored} facts were stored before") from error
    except KeyboardInterrupt:
        raise CliError(
            f"interrupted; {stored} facts were stored, and possibly the batch in progress"
        ) from None
    _show_summary(recording, time.monotonic() - began, output)
    if recording.bad:
        sys.exit(1)


def _declared_by(daemon: DaemonTarget) -> list[Declaration]:
    """Return the streams that the daemon has declared."""
    found = msgspec.convert(daemon.ask(DECLARED.request())["streams"], list[StreamBody])
    return [one.declaration() for one in found]


def _prepare(
    client: BlockingClient,
    daemon: DaemonTarget,
    recording: Recording,
    new: Sequence[Declaration],
    name: str,
) -> None:
    """Declare these streams, and let the daemon check each stream and writer. Raises `HttpError`."""
    for one in new:
        send(
            client,
            DECLARE.request(),
            msgspec.json.encode(StreamBody.of(one)),
            daemon.retry_delays(PATIENCE_SECONDS),
        )
    for stream, writer in dict.fromkeys((fact.stream, fact.writer) for fact in recording.facts):
        delays = daemon.retry_delays(PATIENCE_SECONDS)
        post_facts(client, stream, [], delays, writer=writer, key=f"{name}/0")


def _skipped(recording: Recording) -> dict[str, int]:
    """Return the numbers of skipped facts by stream; declarations are not skipped."""
    return {name: count for name, count in sorted(recording.own.items()) if name != DECLARATIONS.name}


def _requests(facts: Sequence[RecordedFacts], speed: float) -> Iterator[list[RecordedFacts]]:
    """Yield batches of adjacent facts of one stream and writer, within bounds.

    With a speed, a batch contains only facts recorded at the same time.
    """
    for _, run in groupby(facts, key=lambda fact: (fact.stream, fact.writer, fact.at if speed else None)):
        batch: list[RecordedFacts] = []
        left = BATCH_BYTES
        for fact in run:
            size = sum(map(len, fact.rows))
            if batch and (len(batch) == BATCH or size > left):
                yield batch
                batch, left = [], BATCH_BYTES
            batch.append(fact)
            left -= size
        yield batch


def _show_summary(recording: Recording, seconds: float, output: Output) -> None:
    counts: dict[str, dict[str, int]] = {}
    for fact in recording.facts:
        count = counts.setdefault(fact.stream, {"rows": 0, "facts": 0})
        count["rows"] += len(fact.rows)
        count["facts"] += 1
    found = {
        "dialect": recording.dialect.name,
        "facts": len(recording.facts),
        "rows": sum(count["rows"] for count in counts.values()),
        "left_out": len(recording.bad),
        "skipped": _skipped(recording),
        "seconds": round(seconds, 3),
        "streams": counts,
    }
    rows = [(stream, count["rows"], count["facts"]) for stream, count in sorted(counts.items())]
    output.show(found, table(("stream", "rows", "facts"), rows, limit=len(rows)))
