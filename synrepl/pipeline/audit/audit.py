"""The audit: cheap looks at everything first, dear ones only where something looks wrong."""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.errors import PySparkException

from synrepl.asking import Asking
from synrepl.pipeline.archive.manifest import ArchivedFile, BadArchive, Manifest
from synrepl.pipeline.audit import daemon, windows
from synrepl.pipeline.audit.findings import Audited, Findings
from synrepl.pipeline.audit.looking import SEEN, Odd, Run, Seen, look_at_all
from synrepl.pipeline.audit.named import read_manifests, tell_unnamed
from synrepl.pipeline.store import Store
from synrepl.pipeline.telling import Tell, nobody

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["audit"]

TASKS_AT_LEAST: Final = 2


def audit(
    spark: "SparkSession",
    archive: Store,
    *,
    url: str | None = None,
    secret: str | None = None,
    deep: bool = False,
    tell: Tell = nobody,
) -> Audited:
    """Find out whether an archive is what its manifests say, and whole; with `url`, what that daemon has.

    Every file is read and its checksum compared; its rows are counted, and must go on where those before them
    ended. Where that does not come out right, and with `deep` everywhere, every digest is computed again.
    Nothing that is wrong with the archive is raised, but `BadArchive` where there is none; and what is the
    daemon's (`Unreachable`, `Refused`, `NotADaemon`).
    """
    clock = _Clock()
    found = Findings()
    with clock.phase("manifests"):
        manifests = read_manifests(archive, found)
        if not manifests and not found.told():
            raise BadArchive(f"{archive}: nothing is archived there yet")
        tell_unnamed(archive, manifests, found)
    looked = _Audit(spark, archive, manifests, found)
    with clock.phase("files"):
        looked.look(tell)
    with clock.phase("rows"):
        looked.compare()
        looked.explain(deep=deep, tell=tell)
    if url is not None and manifests:
        with clock.phase("daemon"):
            asking = Asking(url, secret=secret)
            try:
                daemon.compare(spark, archive, manifests, asking, found, readable=looked.readable)
            finally:
                asking.close()
    return Audited(
        findings=found.told(),
        untold=found.untold,
        batches=len(manifests),
        files=len(looked.seen),
        bytes=sum(seen.bytes for seen in looked.seen.values()),
        facts=sum(seen.facts for seen in looked.seen.values()),
        rows=sum(seen.rows for seen in looked.seen.values()),
        first_serial=manifests[0].first_serial if manifests else 0,
        last_serial=manifests[-1].last_serial if manifests else 0,
        seconds=clock.seconds,
    )


class _Hole(msgspec.Struct, frozen=True):
    """Between two facts of a writer, or after its last one in a batch, there should be others: those up to
    `upto`, at serials between `after` and `before`."""

    stream: str
    writer: str
    token: int
    upto: int
    after: int
    before: int


class _Audit:
    """An audit on its way."""

    def __init__(
        self, spark: "SparkSession", archive: Store, manifests: Sequence[Manifest], found: Findings
    ) -> None:
        self.seen: dict[str, Seen] = {}
        self.readable: dict[str, ArchivedFile] = {}
        self._spark = spark
        self._archive = archive
        self._manifests = manifests
        self._found = found
        self._void = {turn.stream for manifest in manifests for turn in manifest.turns if turn.stream}
        # Where serials do not come out, and (batch, stream) where writers do not go on.
        self._uneven: set[int] = set()
        self._broken: set[tuple[int, str]] = set()
        # What cannot be read leaves holes that are no news: by batch, the streams.
        self._unknown: dict[int, set[str]] = {}
        # Files with other counts than were written, or other bytes; clocks that are not those of the rows.
        self._short: dict[int, list[ArchivedFile]] = {}
        self._changed: set[str] = set()
        self._ahead: set[tuple[int, str]] = set()

    def look(self, tell: Tell) -> None:
        """See every file that is named."""
        files = {file.path: file for manifest in self._manifests for file in manifest.files}
        tell("files", 0, len(files))
        if files:
            tasks = min(len(files), max(TASKS_AT_LEAST, self._tasks()))
            # Largest first, one to each task in turn: so that none is left with all the large ones.
            ranked = sorted(files.values(), key=lambda file: -file.bytes)
            asked = [(file.path, file.stream, place % tasks) for place, file in enumerate(ranked)]
            seen = (
                self._spark.createDataFrame(asked, "`path` string, `stream` string, `task` int")
                .repartitionById(tasks, "task")
                .mapInArrow(partial(look_at_all, self._archive), SEEN)
                .collect()
            )
            for row in seen:
                one = msgspec.json.decode(row["seen"], type=Seen)
                self.seen[one.path] = one
        tell("files", len(files), len(files))

    def compare(self) -> None:
        """What was seen, with what the manifests say."""
        by_sha256 = {file.sha256: file.path for manifest in self._manifests for file in manifest.files}
        for manifest in self._manifests:
            for file in manifest.files:
                self._compare_file(manifest, file, by_sha256)
            self._compare_batch(manifest)

    def explain(self, *, deep: bool, tell: Tell) -> None:
        """Find out what it is that looks wrong."""
        if deep:
            uneven = {manifest.batch for manifest in self._manifests}
            broken = {(one.batch, file.stream) for one in self._manifests for file in one.files}
        else:
            # Which serials are missing tells what a broken chain means.
            uneven = self._uneven | {batch for batch, _ in self._broken}
            broken = self._broken | {
                (one.batch, file.stream)
                for one in self._manifests
                if one.batch in self._uneven
                for file in one.files
            }
        chosen = [one for one in self._manifests if one.batch in uneven]
        if not chosen:
            return
        tell("rows", 0, sum(one.rows for one in chosen))
        try:
            serials, breaks = self._windows(chosen, broken)
        except PySparkException:
            # Damaged bytes may be read as rows by one reader, and not by another.
            if not self._changed:
                raise
            for path in self._changed & set(self.readable):
                del self.readable[path]
            for one in chosen:
                streams = {file.stream for file in one.files if file.path in self._changed}
                self._unknown.setdefault(one.batch, set()).update(streams)
            serials, breaks = self._windows(chosen, broken)
        self._tell_wrong(serials.wrong)
        self._tell_missing(serials.missing, self._holes(breaks, chosen))
        self._tell_unexplained(chosen)
        tell("rows", sum(one.rows for one in chosen), sum(one.rows for one in chosen))

    def _tasks(self) -> int:
        return int(self._spark.conf.get("spark.sql.shuffle.partitions") or TASKS_AT_LEAST)

    def _windows(
        self, chosen: Sequence[Manifest], broken: set[tuple[int, str]]
    ) -> tuple[windows.Serials, list[windows.Break]]:
        paths = self._paths(chosen)
        if not paths:
            return windows.Serials([], []), []
        # What is left of a trimmed log has holes; its facts are looked at all the same.
        spans = _spans([one for one in chosen if not one.compacted])
        serials = windows.serials(self._spark, self._archive, paths, spans)
        paths = [
            file.path
            for one in chosen
            for file in one.files
            if (one.batch, file.stream) in broken and file.path in self.readable
        ]
        return serials, windows.breaks(self._spark, self._archive, paths) if paths else []

    def _paths(self, manifests: Sequence[Manifest]) -> list[str]:
        return [file.path for one in manifests for file in one.files if file.path in self.readable]

    # One file

    def _compare_file(self, manifest: Manifest, file: ArchivedFile, by_sha256: dict[str, str]) -> None:
        seen = self.seen[file.path]
        if not seen.exists:
            self._tell_file("missing-file", f"there is no {file.path}", manifest, file, {})
        elif (seen.bytes, seen.sha256) != (file.bytes, file.sha256):
            other = by_sha256.get(seen.sha256)
            if other is not None:
                why = f"{file.path} has the bytes of {other}"
            elif seen.bytes != file.bytes:
                why = f"{file.path} has {seen.bytes} bytes; {file.bytes} were written"
            else:
                why = f"{file.path} has other bytes than were written"
            self._changed.add(file.path)
            self._uneven.add(manifest.batch)
            runs = {} if seen.strangers else seen.runs
            self._tell_file("changed-file", why, manifest, file, runs)
        elif seen.unreadable:
            why = f"{file.path} cannot be read: {seen.unreadable}"
            self._tell_file("changed-file", why, manifest, file, {})
        is_misplaced = bool(seen.strangers) or (
            bool(seen.rows) and not manifest.first_serial <= seen.first <= seen.last <= manifest.last_serial
        )
        if not seen.exists or seen.unreadable or is_misplaced:
            self._unknown.setdefault(manifest.batch, set()).add(file.stream)
            if is_misplaced and seen.sha256 == file.sha256:
                whose = f"of {' and '.join(seen.strangers)}, " if seen.strangers else ""
                why = f"{file.path} holds rows {whose}serials {seen.first} to {seen.last}"
                self._tell_file("misplaced-row", why, manifest, file, {})
            return
        self.readable[file.path] = file
        is_mixed_up = any(odd.what == "out-of-order" for odd in seen.odd)
        if is_mixed_up:
            # What seems to be missing may be elsewhere in the file.
            self._uneven.add(manifest.batch)
            seen.odd = [odd for odd in seen.odd if odd.what != "missing-row"]
        for odd in seen.odd:
            self._tell_odd(file, odd)
        told = (seen.rows, seen.facts, seen.first, seen.last)
        if told != (file.rows, file.facts, file.first_serial, file.last_serial):
            self._uneven.add(manifest.batch)
            self._short.setdefault(manifest.batch, []).append(file)

    def _tell_file(
        self, what: str, why: str, manifest: Manifest, file: ArchivedFile, runs: dict[str, Run]
    ) -> None:
        """For each of its writers: from its rows where they can be read, otherwise from the clocks."""
        moved = {writer: (run.low, run.high) for writer, run in runs.items()} or _moved(manifest, file.stream)
        named: list[tuple[str, tuple[int | None, int | None]]] = [*sorted(moved.items())]
        for writer, tokens in named or [("", (None, None))]:
            self._found.add(
                what,
                why,
                stream=file.stream,
                writer=writer,
                tokens=tokens,
                serials=(file.first_serial, file.last_serial),
                file=file.path,
            )

    def _tell_odd(self, file: ArchivedFile, odd: Odd) -> None:
        why = {
            "doubled-row": f"row {odd.seq} of serial {odd.serial} is there twice",
            "missing-row": f"row {odd.seq} of serial {odd.serial} is not there",
            "out-of-order": f"row {odd.seq} of serial {odd.serial} comes after later ones",
        }[odd.what]
        self._found.add(
            odd.what,
            why,
            stream=file.stream,
            writer=odd.writer,
            tokens=(odd.token, odd.token),
            serials=(odd.serial, odd.serial),
            file=file.path,
        )

    # One batch

    def _compare_batch(self, manifest: Manifest) -> None:
        if manifest.compacted:
            return
        unknown = self._unknown.get(manifest.batch, set())
        files = sorted(manifest.files, key=lambda file: file.first_serial)
        seen = [self.seen[file.path] for file in files]
        first, last = manifest.first_serial, manifest.last_serial
        if not unknown:
            facts, serials = sum(one.facts for one in seen), sum(one.serials for one in seen)
            if (facts, serials) != (last - first + 1, (first + last) * (last - first + 1) // 2):
                self._uneven.add(manifest.batch)
            ends = [one.digest for one in seen if one.last == last]
            if ends and ends != [manifest.digest]:
                self._uneven.add(manifest.batch)
                why = f"{manifest.name} has another digest than its last fact, serial {last}"
                self._found.add("manifest", why, serials=(last, last), file=manifest.name)
        for stream in {file.stream for file in files} - unknown:
            here = dict(manifest.start.get(stream, {}))
            high = dict(here)
            for file in files:
                for writer, run in self.seen[file.path].runs.items() if file.stream == stream else ():
                    high[writer] = max(run.high, high.get(writer, run.high))
                    if not run.goes_on or run.before not in (None, here.get(writer, 0)):
                        self._broken.add((manifest.batch, stream))
                    if run.after is not None:
                        here[writer] = run.after
            if high != manifest.end.get(stream, {}) and stream not in self._void:
                self._broken.add((manifest.batch, stream))
                self._ahead.add((manifest.batch, stream))

    # What it means

    def _holes(self, breaks: Sequence[windows.Break], chosen: Sequence[Manifest]) -> list[_Hole]:
        """Where facts of a writer are not there. What is merely wrong about a chain is told right away."""
        holes = []
        firsts = [manifest.first_serial for manifest in chosen]
        for one in breaks:
            manifest = chosen[bisect_right(firsts, one.serial) - 1]
            is_known = one.before_serial is not None and one.before_serial >= manifest.first_serial
            if is_known:
                assert one.before_serial is not None
                assert one.before_token is not None
                after, token = one.before_serial, one.before_token
            else:
                after = manifest.first_serial - 1
                token = manifest.start.get(one.stream, {}).get(one.writer, 0)
            if one.prev_token == token or self._is_excused(one, manifest, token, is_known=is_known):
                continue
            if one.prev_token > token:
                holes.append(_Hole(one.stream, one.writer, token, one.prev_token, after, one.serial))
            else:
                self._tell_chain(one.stream, one.writer, one.serial, one.prev_token, one.token, token)
        for manifest in chosen:
            unknown = self._unknown.get(manifest.batch, set())
            for stream, writers in manifest.end.items():
                if stream not in unknown and not manifest.compacted:
                    holes += self._tails(manifest, stream, writers)
        return holes

    def _is_excused(self, one: windows.Break, manifest: Manifest, token: int, *, is_known: bool) -> bool:
        """Whether there is a reason for it that is no fault."""
        if one.stream in self._unknown.get(manifest.batch, set()):
            return True
        if manifest.compacted:
            return one.prev_token > token
        # Where history was lost, a writer goes on from where that ended, which no clock says.
        crossed = not is_known or one.before_epoch != one.epoch
        if one.stream in self._void and crossed and one.prev_token < token:
            return True
        # Of what was trimmed away, the clock knows nothing.
        first = self._manifests[0]
        return first.compacted and not is_known and one.prev_token > token

    def _tails(self, manifest: Manifest, stream: str, writers: dict[str, int]) -> Iterator[_Hole]:
        for writer, upto in writers.items():
            token = manifest.start.get(stream, {}).get(writer, 0)
            after = manifest.first_serial - 1
            for file in manifest.files:
                run = self.seen[file.path].runs.get(writer) if file.stream == stream else None
                if run is not None:
                    token, after = max(token, run.high), max(after, run.last_serial)
            if token < upto:
                yield _Hole(stream, writer, token, upto, after, manifest.last_serial + 1)

    def _tell_wrong(self, wrong: Sequence[windows.Wrong]) -> None:
        told = {(odd.what, odd.serial) for path in self.readable for odd in self.seen[path].odd}
        why = {
            "doubled-row": "serial {} is there twice, or a row of it is",
            "missing-row": "a row of serial {} is not there",
            "changed-row": "serial {} is not what its digest stands for: it, or its digest, was changed",
        }
        spoiled = {one.serial for one in wrong if one.what != "changed-row"} | {serial for _, serial in told}
        for one in wrong:
            if (one.what, one.serial) in told or (one.what == "changed-row" and one.serial in spoiled):
                continue
            self._found.add(
                one.what,
                why[one.what].format(one.serial),
                stream=one.stream,
                writer=one.writer,
                tokens=(one.token, one.token),
                serials=(one.serial, one.serial),
                file=self._file_of(one.stream, one.serial),
            )

    def _file_of(self, stream: str, serial: int) -> str:
        for path, file in self.readable.items():
            if file.stream == stream and file.first_serial <= serial <= file.last_serial:
                return path
        return ""

    def _tell_missing(self, missing: Sequence[tuple[int, int]], holes: Sequence[_Hole]) -> None:
        """Serials that are nowhere, with whose they were where the writer's other facts tell."""
        for hole in holes:
            runs = [
                (max(first, hole.after + 1), min(last, hole.before - 1))
                for first, last in missing
                if first < hole.before and last > hole.after
            ]
            if not runs:
                self._tell_chain(hole.stream, hole.writer, hole.before, hole.upto, hole.upto, hole.token)
                continue
            self._found.add(
                "missing-row",
                f"facts of {hole.writer} with tokens beyond {hole.token}, up to {hole.upto}, are not there",
                stream=hole.stream,
                writer=hole.writer,
                tokens=(hole.token + 1, hole.upto),
                serials=(runs[0][0], runs[-1][1]),
                file=self._file_of(hole.stream, runs[0][0]),
            )
        for first, last in missing:
            batch = next((m for m in self._manifests if m.first_serial <= first <= m.last_serial), None)
            is_told = any(first < hole.before and last > hole.after for hole in holes)
            if is_told or batch is None or self._unknown.get(batch.batch):
                continue
            short = self._short.get(batch.batch, [])
            which = short[0] if len(short) == 1 else None
            self._found.add(
                "missing-row",
                f"serial {first} is not there"
                if first == last
                else f"serials {first} to {last} are not there",
                stream=which.stream if which else "",
                serials=(first, last),
                file=which.path if which else "",
            )

    def _tell_unexplained(self, chosen: Sequence[Manifest]) -> None:
        """What does not come out right although all rows do: then it is the manifest that is wrong."""
        wrong = {one.first_serial for one in self._found.told() if one.severity == "error"}
        for manifest in chosen:
            serials = (manifest.first_serial, manifest.last_serial)
            if any(serial is not None and serials[0] <= serial <= serials[1] for serial in wrong):
                continue
            for file in self._short.get(manifest.batch, []):
                seen = self.seen[file.path]
                why = f"{manifest.name} says that {file.path} has {file.rows} rows of {file.facts} facts"
                why += f" from serial {file.first_serial} to {file.last_serial};"
                why += f" it has {seen.rows} of {seen.facts} from {seen.first} to {seen.last}"
                self._found.add("manifest", why, stream=file.stream, serials=serials, file=file.path)
            for stream in sorted(stream for batch, stream in self._ahead if batch == manifest.batch):
                why = f"{manifest.name} has another clock of {stream} than its rows"
                self._found.add("manifest", why, stream=stream, serials=serials, file=manifest.name)

    def _tell_chain(
        self, stream: str, writer: str, serial: int, prev_token: int, token: int, expected: int
    ) -> None:
        why = f"{writer} goes on at token {prev_token}, where it was at {expected}"
        self._found.add(
            "broken-chain",
            why,
            stream=stream,
            writer=writer,
            tokens=(min(prev_token, expected), max(token, expected)),
            serials=(serial, serial),
            file=self._file_of(stream, serial),
        )


class _Clock:
    """How long each phase took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - begun, 3)


def _spans(manifests: Sequence[Manifest]) -> list[windows.Span]:
    """Runs of serials: batches that follow each other are one."""
    spans: list[windows.Span] = []
    for manifest in manifests:
        if spans and spans[-1].last + 1 == manifest.first_serial:
            spans[-1] = windows.Span(spans[-1].first, manifest.last_serial, spans[-1].digest)
        else:
            spans.append(windows.Span(manifest.first_serial, manifest.last_serial, manifest.start_digest))
    return spans


def _moved(manifest: Manifest, stream: str) -> dict[str, tuple[int, int]]:
    """The tokens by which the writers of a stream went on in a batch, as its clocks tell."""
    start = manifest.start.get(stream, {})
    return {
        writer: (start.get(writer, 0) + 1, token)
        for writer, token in manifest.end.get(stream, {}).items()
        if token > start.get(writer, 0)
    }
