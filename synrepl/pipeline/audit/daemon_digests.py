"""Comparison of an archive with a daemon, by digests, without transferring rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.http_api.routes import DIGESTS
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.manifest import Manifest
from synrepl.pipeline.audit.comparison import Comparison
from synrepl.pipeline.audit.file_scan import read_checked, read_files
from synrepl.pipeline.audit.findings import AuditFindings
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import Store

__all__ = ["compare_with_daemon"]

AT_ONCE: Final = 500
"""Serials per request. The daemon accepts 1,000, but the URL must not get too long."""


def compare_with_daemon(
    spark: SparkSession,
    store: Store,
    manifests: Sequence[Manifest],
    client: BlockingClient,
    found: AuditFindings,
    *,
    compared: Comparison,
) -> None:
    """Compare the digests at the ends of batches; if one differs, find the first difference.

    A digest covers all facts before it, so all digests after a difference differ. Only the readable files of
    `compared` are read. Raises `ConnectError` and `HttpError`.
    """
    end = manifests[-1]
    response = client.json(DIGESTS.request(serials=[end.last_serial]))
    if end.history and response["history"] != end.history:
        why = f"the archive has history {end.history}, the daemon's log has {response['history']}"
        found.add("other-history", why)
        return
    head = int(response["serial"])
    if head < end.last_serial:
        _report_beyond(spark, store, head, compared, found)
    known = {manifest.last_serial: manifest.digest for manifest in manifests if manifest.last_serial <= head}
    cut = next((one for one in manifests if one.first_serial <= head < one.last_serial), None)
    rows = _Digests(store, compared)
    if cut is not None and (digest := rows.of(cut).get(head)) is not None:
        known[head] = digest
    theirs = _get_digests(client, sorted(known))
    unknown = [serial for serial, digest in theirs.items() if digest is None]
    if unknown:
        why = f"the daemon has trimmed its digests up to serial {max(unknown)}"
        found.add("daemon-trimmed", why, serials=(manifests[0].first_serial, max(unknown)))
    differing = [serial for serial in known if theirs[serial] not in (None, known[serial])]
    if not differing:
        return
    upto = min(differing)
    after = max((serial for serial in known if serial < upto and theirs[serial] is not None), default=None)
    manifest = next(one for one in manifests if one.first_serial <= upto <= one.last_serial)
    first, is_exact = _first(client, rows.of(manifest), after, upto)
    fact = rows.fact(manifest, first)
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


def _report_beyond(
    spark: SparkSession,
    store: Store,
    head: int,
    compared: Comparison,
    found: AuditFindings,
) -> None:
    end = compared.manifests[-1].last_serial
    paths = [path for path, file in compared.readable.items() if file.last_serial > head]
    is_reported = False
    if paths:
        facts = (
            read_files(spark, store, paths, compared.changed)
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


class _Digests:
    """The digests of the rows of batches, read on demand."""

    def __init__(self, store: Store, compared: Comparison) -> None:
        self._store = store
        self._compared = compared
        self._of: dict[int, dict[int, str]] = {}

    def of(self, manifest: Manifest) -> Mapping[int, str]:
        """Return the digests of a batch by serial."""
        if manifest.batch not in self._of:
            found: dict[int, str] = {}
            for path in self._paths(manifest):
                table = self._table(path).select(["serial", "digest"])
                found.update(zip(table["serial"].to_pylist(), table["digest"].to_pylist(), strict=True))
            self._of[manifest.batch] = found
        return self._of[manifest.batch]

    def fact(self, manifest: Manifest, serial: int) -> dict[str, Any]:
        """Return stream, writer, token and file of a fact; empty if the fact is missing."""
        for path in self._paths(manifest):
            rows = self._table(path)
            if (at := pc.index(rows["serial"], serial).as_py()) >= 0:
                row = rows.select(["stream", "writer", "token"]).slice(at, 1).to_pylist()[0]
                return {**row, "file": path}
        return {}

    def _paths(self, manifest: Manifest) -> list[str]:
        return [file.path for file in manifest.files if file.path in self._compared.readable]

    def _table(self, path: str) -> Any:
        with self._store.filesystem.open_input_file(self._store.path(path)) as source:
            if path in self._compared.changed:
                return pa.Table.from_batches(read_checked(source), ROWS)
            return pq.read_table(source, columns=["serial", "stream", "writer", "token", "digest"])
