"""Comparison of an archive with a daemon, by digests, without transferring rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.http_api.routes import DIGESTS
from synrepl.http_client import BlockingClient
from synrepl.pipeline.audit.comparison import Comparison
from synrepl.pipeline.audit.file_scan import read_checked, read_files
from synrepl.pipeline.audit.findings import AuditFindings
from synrepl.pipeline.source.rows import ROWS

__all__ = ["compare_with_daemon"]

AT_ONCE: Final = 500
"""Serials per request. The daemon accepts 1,000, but the URL must not get too long."""


def compare_with_daemon(
    spark: SparkSession, compared: Comparison, client: BlockingClient, found: AuditFindings
) -> None:
    """Compare the digests at the ends of files; if one differs, find the first difference.

    A digest covers all facts before it, so all digests after a difference differ. Only the readable files of
    `compared` are read. Raises `ConnectError` and `HttpError`.
    """
    end = compared.table.end
    response = client.json(DIGESTS.request(serials=[end.last_serial]))
    if end.history and response["history"] != end.history:
        why = f"the archive has history {end.history}, the daemon's log has {response['history']}"
        found.add("other-history", why)
        return
    head = int(response["serial"])
    if head < end.last_serial:
        _report_beyond(spark, head, compared, found)
    known = {serial: digest for serial, digest in compared.anchors.items() if serial <= head}
    if end.last_serial <= head:
        known.setdefault(end.last_serial, end.digest)
    elif (digest := _digests(compared, head, head).get(head)) is not None:
        known[head] = digest
    theirs = _get_digests(client, sorted(known))
    unknown = [serial for serial, digest in theirs.items() if digest is None]
    if unknown:
        why = f"the daemon has trimmed its digests up to serial {max(unknown)}"
        found.add("daemon-trimmed", why, serials=(1, max(unknown)))
    differing = [serial for serial in known if theirs[serial] not in (None, known[serial])]
    if not differing:
        return
    upto = min(differing)
    after = max((serial for serial in known if serial < upto and theirs[serial] is not None), default=None)
    first, is_exact = _first(client, _digests(compared, (after or 0) + 1, upto), after, upto)
    fact = next(_rows(compared, first, first, ["stream", "writer", "token"]), {})
    where = f"at serial {first}" if is_exact else f"at serial {first} or before it"
    why = f"the daemon has other facts {where}, and after that"
    found.add(
        "differs-from-daemon",
        why,
        stream=fact.get("stream", ""),
        writer=fact.get("writer", ""),
        tokens=(fact.get("token"), fact.get("token")),
        serials=(first, min(head, end.last_serial)),
        file=fact.get("file", ""),
    )


def _get_digests(client: BlockingClient, serials: Sequence[int]) -> dict[int, str | None]:
    theirs: dict[int, str | None] = {}
    for first in range(0, len(serials), AT_ONCE):
        request = DIGESTS.request(serials=serials[first : first + AT_ONCE])
        digests = client.json(request)["digests"]
        theirs.update((int(serial), digest) for serial, digest in digests.items())
    return theirs


def _first(client: BlockingClient, ours: Mapping[int, str], after: int | None, upto: int) -> tuple[int, bool]:
    """Return the first differing serial in ``(after, upto]``, and whether it is certain.

    A search in steps of 500 parts, with a tenth of the requests of a binary search.
    """
    left = sorted(serial for serial in ours if (after is None or after < serial) and serial < upto)
    is_sure = after is not None
    last_equal = after
    while left:
        step = max(1, -(-len(left) // AT_ONCE))
        probes = left[step - 1 :: step]
        theirs = _get_digests(client, probes)
        equal = [serial for serial in probes if theirs[serial] == ours[serial]]
        differing = [serial for serial in probes if theirs[serial] not in (None, ours[serial])]
        unknown = [serial for serial in probes if theirs[serial] is None]
        if equal:
            is_sure, last_equal = True, max(equal)
        if differing:
            upto = min(differing)
        floor = max([*equal, *unknown], default=None)
        left = [serial for serial in left if serial < upto and (floor is None or serial > floor)]
    return upto, is_sure and (last_equal == upto - 1 or upto - 1 not in ours)


def _report_beyond(spark: SparkSession, head: int, compared: Comparison, found: AuditFindings) -> None:
    end = compared.table.end.last_serial
    beyond = compared.readable(head + 1, end)
    is_reported = False
    if len(beyond):
        facts = (
            read_files(spark, compared.table.store, beyond, compared.changed)
            .where((F.col("serial") > head) & (F.col("seq") == 0))
            .groupBy("stream", "writer")
            .agg(F.count("*"), F.min("token"), F.max("token"), F.min("serial"), F.max("serial"))
        )
        for stream, writer, count, low, high, first, last in sorted(facts.collect()):
            is_reported = True
            found.add(
                "missing-in-daemon",
                f"the daemon's log ends at serial {head}; {count} facts beyond it are of {writer}",
                stream=stream,
                writer=writer,
                tokens=(low, high),
                serials=(first, last),
            )
    if not is_reported:
        why = f"the daemon's log ends at serial {head}, the archive at {end}"
        found.add("missing-in-daemon", why, serials=(head + 1, end))


def _digests(compared: Comparison, first: int, last: int) -> Mapping[int, str]:
    """Return the digests of these serials that readable files have."""
    return {row["serial"]: row["digest"] for row in _rows(compared, first, last, ["serial", "digest"])}


def _rows(compared: Comparison, first: int, last: int, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield columns of the rows with these serials, and their `file`, from readable files."""
    store = compared.table.store
    within = (pc.field("serial") >= first) & (pc.field("serial") <= last)
    for path in compared.readable(first, last)["path"].to_pylist():
        with store.filesystem.open_input_file(store.path(path)) as source:
            if path in compared.changed:
                table = pa.Table.from_batches(read_checked(source), ROWS).filter(within)
            else:
                table = pq.read_table(source, columns=sorted({"serial", *columns}), filters=within)
        yield from ({**row, "file": path} for row in table.select(list(columns)).to_pylist())
