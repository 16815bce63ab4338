"""Facts that are appended in two steps: tasks stage them, and the driver appends what they have staged.

A task uploads its facts to the daemon as files by checksum, which are not facts yet. When all tasks have
finished, the driver appends the files in order. The daemon removes staged facts that are never appended.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby, islice
from operator import itemgetter
from typing import Any

from synrepl.http_api.route import HttpRequest
from synrepl.http_api.routes import APPEND_BATCH
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.options import SourceOptions

StagedFact = tuple[str, str | None, str]
"""The stream and the writer of a fact, and its rows as a JSON array."""


def build_facts(lines: Iterable[dict[str, Any]], options: SourceOptions) -> Iterator[StagedFact]:
    """Yield the facts of these lines.

    A line with `rows` is a fact. Consecutive lines with a `row` are one fact if they have the same stream,
    writer and `serial`, or, without a serial, `token`; a line without either is a fact.
    Facts without rows are skipped: they only certify the position of their writer.
    """
    numbers = count()

    def source(line: dict[str, Any]) -> tuple[str, str | None]:
        return str(line.get("stream") or options.stream), line.get("writer") or options.writer

    def identity(line: dict[str, Any]) -> tuple[Any, ...]:
        if line.get("rows") is None:
            for name in ("serial", "token"):
                if line.get(name) is not None:
                    return (name, *source(line), line[name])
        return ("line", next(numbers))

    with_rows = (line for line in lines if line.get("rows") is not None or line.get("row") is not None)
    for _, some in groupby(with_rows, identity):
        fact = list(some)
        rows = fact[0].get("rows")
        yield *source(fact[0]), f"[{','.join(line['row'] for line in fact)}]" if rows is None else rows


def request_bodies(facts: Iterable[StagedFact], most: int) -> Iterator[tuple[bytes, int]]:
    """Yield bodies of requests for ``POST /v1/facts``, and their numbers of facts, at most `most`.

    Adjacent facts of one stream and writer are grouped; the order is kept.
    """
    left = iter(facts)
    while some := list(islice(left, most)):
        runs = groupby(some, itemgetter(0, 1))
        yield request_body((*source, (rows for *_, rows in run)) for source, run in runs), len(some)


def request_body(appends: Iterable[tuple[str, str | None, Iterable[str]]]) -> bytes:
    """Return the body for ``POST /v1/facts`` of these appends: stream, writer and the rows of each fact."""
    texts = []
    for stream, writer, facts in appends:
        head = json.dumps({"stream": stream} if writer is None else {"stream": stream, "writer": writer})
        texts.append(f'{head[:-1]}, "facts": [{",".join(facts)}]}}')
    return f'{{"appends": [{",".join(texts)}]}}'.encode()


def stage_facts(facts: Iterable[StagedFact], options: SourceOptions) -> list[str]:
    """Upload facts in files of `batch_facts`; return their checksums, in order."""
    return stage_bodies((body for body, _ in request_bodies(facts, options.batch_facts)), options)


def stage_bodies(bodies: Iterable[bytes], options: SourceOptions) -> list[str]:
    """Upload bodies of requests as files; return their checksums, in order."""
    daemon = SourceClient(options)
    files = []
    for body in bodies:
        files.append(hashlib.sha256(body).hexdigest())
        # The daemon may have files where they are not installed here.
        daemon.send(HttpRequest("PUT", f"/v1/files/sha256/{files[-1]}"), body)
    return files


def append_staged(daemon: SourceClient, files: Sequence[str], key: str) -> None:
    """Append staged files, in order: each once under the idempotency key and its number."""
    for number, sha256 in enumerate(files):
        body = json.dumps({"staged": sha256, "idempotency_key": f"{key}/{number}"}).encode()
        daemon.send(APPEND_BATCH.request(), body)
