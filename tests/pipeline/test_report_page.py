"""The page of a report and what is on it, without tasks: bins, words, tables, pictures, verdicts."""

import csv
import io
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from synrepl.base.history import EpochStart
from synrepl.html.humanize import number, rate, share, shortened, size, span
from synrepl.html.templates import load_template
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.audit.audit_findings import ChainBreak
from synrepl.pipeline.report import charts
from synrepl.pipeline.report.counts import Bins, bins_for, writer_lags
from synrepl.pipeline.report.invalidations import Invalidations, expand_batches, meaning
from synrepl.pipeline.report.listings import Listing, as_csv
from synrepl.pipeline.report.measurement import Coverage, DaemonStatus, Measurements, ask, counters
from synrepl.pipeline.report.report import ReportResult, shown, write
from tests.caches.fakes import NEWEST
from tests.pipeline.archives import BEGAN_MS

BEGAN = BEGAN_MS // 1000
HOSTILE = "<img src=x onerror=alert(1)>&\"'$x^2$=cmd|\u202e\x00"


@pytest.mark.parametrize(
    ("seconds", "width"),
    [(0, 1), (150, 1), (300, 2), (3600, 30), (86_400, 600), (7 * 86_400, 3600), (365 * 86_400, 2 * 86_400)],
)
def test_bins_fit_the_span(seconds: int, width: int) -> None:
    """A picture has neither so many steps that they blur, nor so few that nothing is to be seen."""
    bins = bins_for(BEGAN_MS + 17, BEGAN_MS + 17 + seconds * 1000)

    assert width == bins.width
    assert bins.count <= 200
    assert seconds < 100 or bins.count >= 60
    assert 0 == bins.index(BEGAN)
    assert bins.count - 1 == bins.index(BEGAN + seconds)
    assert bins.starts[0] <= BEGAN < bins.starts[0] + bins.width


def test_bins_of_a_clock_gone_wrong() -> None:
    """Whatever times facts have, there is a page."""
    assert bins_for(0, 10**14).count <= 200


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("1,234,567", number(1_234_567)),
        ("2.35", number(2.3456)),
        ("1,000", number(999.9)),
        ("12.0 KiB", size(12 * 1024)),
        ("1.0 MiB", size(1024**2 - 1)),
        ("1023.9 KiB", size(1024**2 - 100)),
        ("340 ms", span(0.34)),
        ("1 d", span(86_400)),
        ("2 h 5 min", span(7_500)),
        ("1 d", span(86_400 + 120)),
        ("\N{MINUS SIGN}5.0 s", span(-5)),
        ("< 0.1 %", share(1, 10**6)),
        ("> 99.9 %", share(10**6 - 1, 10**6)),
        ("100 %", share(3, 3)),
        ("30 facts a minute", rate(1800, 3600, "facts")),
        ("aaa…a", shortened("a" * 99, 5)),
        ("x\N{REPLACEMENT CHARACTER}y", shortened("x\x00y")),
    ],
)
def test_numbers_are_for_people(expected: str, found: str) -> None:
    """What is read at a glance is not counted in digits."""
    assert expected == found


def test_only_markup_is_taken_as_it_is() -> None:
    """Names and keys come from whoever writes to the homeserver."""
    macros: Any = load_template("synrepl.html", "macros.html.j2").module

    bold = macros.mark("<b>", "bad", '<"')

    assert '<span class="mark bad" title="&lt;&#34;">&lt;b&gt;</span>' == bold
    assert f"<dt>&lt;i&gt;</dt><dd>{bold}</dd>" in macros.facts([("<i>", bold), ("none", None), ("no", "")])
    assert "<dt>no" not in macros.facts([("<i>", bold), ("none", None), ("no", "")])


def test_a_table_shortens_and_its_file_does_not(tmp_path: Path) -> None:
    """The page is to be read, the CSV to be counted with."""
    name = "k" * 100
    rows = [{"key": name, "share": 0.25, "bytes": 2048, "none": 0}, {"key": HOSTILE, "share": 1.0}]

    file = as_csv(Listing("t", ("key", "share", "bytes", "none"), rows)).decode()
    page = _page(write(_measured(name), tmp_path))

    assert [["key", "share", "bytes", "none"], [name, "0.25", "2048", "0"], [HOSTILE, "1.0", "", ""]] == list(
        csv.reader(io.StringIO(file))
    )
    assert "<td>2.9 KiB</td>" in page or '<td class="number">2.9 KiB</td>' in page
    assert f">{name}</td>" not in page
    assert f' title="{name}">{shortened(name)}</td>' in page, "all of it is in the title"
    assert ">gaps</th>" not in page, "a column that says nothing is left out"
    assert ">empty</th>" not in page


def test_no_name_is_a_formula_in_a_file() -> None:
    """A spreadsheet would compute it, which may run a program."""
    names = ["=cmd|calc!A1", "+1+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\uff1d1", "\uff201", "plain", "a=1"]

    file = as_csv(Listing("t", ("name", "rows"), [{"name": name, "rows": -1} for name in names])).decode()

    assert [[f"'{name}", "-1"] for name in names[:8]] + [[name, "-1"] for name in names[8:]] == list(
        csv.reader(io.StringIO(file, newline=""))
    )[1:]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rows", None, ""),
        ("rows", 12_345, "12,345"),
        ("missing", 0, ""),
        ("missing", 2, "2"),
        ("committed_ms", 0, "1970-01-01 00:00:00 UTC"),
        ("lag_seconds", 7_500.0, "2 h 5 min"),
        ("bytes_p99", 2048, "2.0 KiB"),
        ("held_bytes", 2048, "2.0 KiB"),
        ("used", 0.25, "25.0 %"),
        ("meant_per_row", 2.0, "2.0"),
        ("registered", False, "anonymous"),
        ("from", "2026-11-20T12:30:00Z", "2026-11-20 12:30 UTC"),
        ("key", '["!r:h", "@a:h"]', "!r:h, @a:h"),
        ("key", "[]", "(no arguments)"),
        ("key", "7", "7"),
        ("key", "[" * 100_000, shortened("[" * 100_000)),
        ("stream", "x\x00y", "x\N{REPLACEMENT CHARACTER}y"),
    ],
)
def test_values_are_formatted_by_their_unit(key: str, value: Any, expected: str) -> None:
    """The key of a column has it."""
    assert expected == shown(key, value)


def _over_time(*rows: tuple[int, str, int]) -> list[dict[str, Any]]:
    return [
        {
            "bin": position,
            "stream": "events",
            "writer": writer,
            "token": token,
            "last_ms": (position * 10 + 5) * 1000,
        }
        for position, writer, token in rows
    ]


def test_a_writer_is_behind_when_others_go_on() -> None:
    """Whoever waits for all writers of a stream waits for the slowest."""
    bins = Bins(0, 10, 4)
    told = _over_time((0, "w1", 5), (1, "w1", 7), (1, "w2", 8), (3, "w2", 9))

    first, second = writer_lags(told, bins, last_ms=38_000)

    assert ("w1", [5.0, 5.0, 15.0, 23.0], [0, 1, 1, 2]) == (first.writer, first.silent, first.behind)
    assert ("w2", [None, 5.0, 15.0, 3.0], [None, 0, 0, 0]) == (second.writer, second.silent, second.behind)
    assert 23.0 == first.silent_most


def test_a_stream_of_one_writer_has_nobody_behind() -> None:
    """It is its own newest."""
    assert [] == writer_lags(_over_time((0, "w1", 5)), Bins(0, 10, 4), last_ms=38_000)


def _told(name: str, keys: list[str] | None) -> str:
    return msgspec.json.encode([name, msgspec.json.encode(keys).decode()]).decode()


def test_names_are_expanded_as_workers_do() -> None:
    """What a report counts is what `CacheRegistry` drops, whatever the batches."""
    rows = [
        ("cs_cache_fake", ["!r:h", "@a:h", "@b:other"], 3),
        ("cs_cache_fake", ["!r:h"], 2),
        ("get_user_by_id", ["@a:h"], 4),
        ("get_user_by_id", None, 1),
    ]
    expected: Counter[tuple[str, str | None]] = Counter()
    for name, keys, count in rows:
        for one in NEWEST.expand(name, keys):
            expected[one.cache, None if one.key is None else msgspec.json.encode(one.key).decode()] += count
    told = [_told(name, keys) for name, keys, count in rows for _ in range(count)]
    columns = {"key": told, "minute": [7] * len(told)}
    batches = pa.table(columns).to_batches(max_chunksize=2)

    found: Counter[tuple[str, str | None]] = Counter()
    names: Counter[str] = Counter()
    for batch in expand_batches(batches):
        for row in batch.to_pylist():
            names[row["name"]] += row["rows"]
            assert len(row["drops"]) * row["rows"] == row["keyed"] + row["whole"]
            for drop in row["drops"]:
                found[drop["cache"], drop["key"]] += row["rows"]

    assert expected == found
    assert {"cs_cache_fake": 5, "get_user_by_id": 5} == names


def test_unreadable_invalidations_are_counted() -> None:
    """An alias without keys drops all that it can mean, as in a worker; a row of nonsense is left out."""
    assert 1 == meaning(None).unreadable
    assert 1 == meaning("{").unreadable
    misshapen = meaning(_told("ph_cache_fake", []))
    assert (1, len(NEWEST.reaches("ph_cache_fake"))) == (misshapen.misshapen, misshapen.whole)
    packed = meaning(_told("_get_server_keys_json", ['["h","k"]', "no list"]))
    assert (1, (("_get_server_keys_json", '["h","k"]'),)) == (packed.unreadable, packed.drops)


def test_counters_of_a_daemon() -> None:
    """Labels, other metrics and nonsense do not matter."""
    text = "# TYPE x counter\nsynrepl_gaps_detected_total 3.0\nsynrepl_gaps_lost_total x\nsynrepl_epoch 1\n"

    assert {"synrepl_gaps_detected_total": 3} == counters(text)


def test_a_daemon_that_is_not_there() -> None:
    """The archive can be reported on all the same, and nobody learns the password in the address."""
    told = ask("http://me:secret@127.0.0.1:1/")

    assert "http://127.0.0.1:1" == told.url
    assert told.trouble.startswith("cannot connect")


def _total(stream: str, writer: str, **more: Any) -> dict[str, Any]:
    counts = ("empty", "late", "skipping", "skipped", "copied", "backwards")
    return {
        "stream": stream,
        "writer": writer,
        "facts": 10,
        "rows": 20,
        "bytes": 3000,
        "first_ms": BEGAN_MS,
        "last_ms": BEGAN_MS + 60_000,
        "token": 10,
        "median_seconds": 1.0,
        "p90_seconds": 2.0,
        "p99_seconds": 3.0,
        "most_seconds": 4.0,
        **dict.fromkeys(counts, 0),
        **more,
    }


def _batch(last_at_ms: int, archived_at_ms: int, **more: Any) -> Batch:
    given: dict[str, Any] = {
        "server_name": "localhost",
        "history": "h",
        "digest": "d",
        "first_serial": 1,
        "last_serial": 20,
        "facts": 20,
        "rows": 40,
        "bytes": 999,
        "epoch": 1,
        "end": {},
        "first_at_ms": BEGAN_MS,
        "last_at_ms": last_at_ms,
        "archived_at_ms": archived_at_ms,
    }
    return Batch(**{**given, **more})


def _covers(stream: str, writer: str, **more: Any) -> Coverage:
    batch = _batch(BEGAN_MS + 60_000, BEGAN_MS + 61_000, end={stream: {writer: 10, "w2": 10}}, **more)
    return Coverage(pa.table({"bytes": [999]}), [batch])


def _measured(stream: str = "caches", writer: str = "w1", key: str = '["!r:h"]', **more: Any) -> Measurements:
    bins = Bins(BEGAN, 1, 61)
    bin_row = {"stream": stream, "facts": 5, "rows": 10, "bytes": 1500}
    given: dict[str, Any] = {
        "position": "/archive",
        "top": 20,
        "bins": bins,
        "minutes": Bins(BEGAN, 60, 2),
        "covers": _covers(stream, writer),
        "totals": [_total(stream, writer), _total(stream, "w2")],
        "peaks": {(stream, writer): (5, 10), (stream, None): (6, 11), (None, None): (6, 11)},
        "over_time": [
            {**bin_row, "bin": position, "writer": name, "token": 5, "last_ms": BEGAN_MS + position * 1000}
            for position in (3, 50)
            for name in (writer, "w2")
        ],
        "hours": [{"at": BEGAN, "facts": 20, "rows": 40, "bytes": 6000}],
        "hours_width": 60,
        "sizes": [
            {
                "stream": stream,
                "facts": 20,
                "bytes_median": 100,
                "bytes_p90": 200,
                "bytes_p99": 300,
                "bytes_most": 400,
                "rows_median": 2,
                "rows_p99": 4,
                "rows_most": 5,
            }
        ],
        "spread": [{"bytes": 6, "rows": 1, "facts": 20}],
        "largest": [
            {
                "stream": stream,
                "writer": writer,
                "token": 3,
                "serial": 3,
                "rows": 5,
                "bytes": 400,
                "committed_ms": BEGAN_MS,
            }
        ],
        "batches": [_batch(BEGAN_MS + 60_000, BEGAN_MS + 61_000)],
        "lags": [],
        "invalidations": Invalidations(
            names=[
                {
                    "name": key,
                    "rows": 40,
                    "meant": 82,
                    "meant_per_row": 2.05,
                    "keyed": 80,
                    "whole": 2,
                    "misshapen": 1,
                    "unreadable": 1,
                }
            ],
            caches=[{"cache": key, "invalidations": 82, "whole": 2, "keys": 1, "told_as": key}],
            keys=[{"cache": key, "key": key, "invalidations": 80}],
            subjects=[{"key": key, "invalidations": 80, "caches": 1, "mostly": key}],
            minutes=[{"bin": 0, "rows": 40, "keyed": 80, "whole": 2, "busiest_minute": 82}],
        ),
    }
    measured = Measurements(**{**given, **more})
    lags = writer_lags(measured.over_time, bins, last_ms=BEGAN_MS + 60_000)
    return msgspec.structs.replace(measured, lags=lags)


def _page(made: ReportResult) -> str:
    return made.page.read_text(encoding="utf-8")


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    """It can be sent by mail, and opened where there is no network."""
    made = write(_measured(), tmp_path / "out")
    page = _page(made)

    assert not re.search(r'(?:src|href|action|data)\s*=\s*["\']?(?:https?:)?//', page)
    assert "http://" not in page
    assert "<script" not in page
    assert "@import" not in page
    assert {path.name for path in made.files} | {"index.html"} == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    links = {link for link in re.findall(r'href="([^"#]+)"', page) if link != "data:,"}
    assert {path.name for path in made.files} == links, "each is named in the page"
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(ids)


def test_every_color_of_a_chart_has_a_dark_one(tmp_path: Path) -> None:
    """The style sheet of the charts and that of the page belong together."""
    page = _page(write(_measured(), tmp_path))

    used = set(re.findall(r"var\(--c([0-9a-f]{6}), ", page))
    assert {"1c2126", "2f6fde"} < used
    assert used <= set(re.findall(r"--c([0-9a-f]{6}):", page))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Whoever can name a room or a writer must not get a script, a picture or a formula of TeX out of it."""
    made = write(_measured(HOSTILE, HOSTILE, '["<script>alert(2)</script>"]'), tmp_path)
    page = _page(made)

    assert "<img" not in page
    assert "onerror=alert(1)&gt;" in page
    assert "script&gt;alert(2)" in page, "a key"
    assert "\x00" not in page
    assert "\u202e" not in page


def test_the_worst_comes_first(tmp_path: Path) -> None:
    """An operator who reads one line has read the one that matters."""
    epoch_starts = [
        EpochStart(2, 10, "d", BEGAN_MS, "promoted"),
        EpochStart(3, 12, "d", BEGAN_MS, "lost", "events", 5),
    ]
    broken = ChainBreak(
        stream="caches",
        writer="w1",
        serial=9,
        epoch=1,
        expected=4,
        prev_token=6,
        token=7,
        committed_ms=BEGAN_MS,
        kind="missing",
    )
    daemon = DaemonStatus(
        url="http://127.0.0.1:9093",
        status={"role": "primary", "state": "serving", "serial": 30, "errors": [], "replicas": []},
        leases=[
            {"name": "oslo", "uuid": "u", "serial": 3, "ended": 5.0, "reason": "it was away", "used": 1.0}
        ],
        gaps={"synrepl_gaps_detected_total": 4, "synrepl_gaps_lost_total": 1},
    )

    made = write(
        _measured(
            covers=_covers("caches", "w1", epoch_starts=epoch_starts, epoch=3),
            broken=[broken, msgspec.structs.replace(broken, serial=8, expected=2, prev_token=4, kind="lost")],
            voided={3: 2},
            daemon=daemon,
            totals=[_total("caches", "w1", late=2), _total("caches", "w2")],
            batches=[_batch(BEGAN_MS, BEGAN_MS + 7_200_000)],
        ),
        tmp_path,
    )

    assert [
        ("bad", "1 gap: facts are missing"),
        ("bad", "1 gap: facts were lost at the source"),
        ("bad", "Epoch 3: facts of events were lost at the source"),
        ("bad", "The daemon has 1 unrecoverable gap"),
        ("busy", "The archive lag was up to 2 h"),
        ("busy", "Epoch 2: a daemon was promoted"),
        ("busy", "The lease of oslo ended"),
        ("busy", "1 row of the stream caches with unexpected keys"),
        ("busy", "1 row or key of the stream caches cannot be read"),
        ("dim", "2 facts came late"),
    ] == [(one.kind, one.text) for one in made.found]
    assert ("bad", 1) == (made.state, made.missing)
    page = _page(made)
    assert (
        page.index("Facts are missing or wrong")
        < page.index("1 gap: facts are missing")
        < page.index("Coverage")
    )
    assert "4 found, 0 repaired" in page
    assert "1 gap</span> that the log itself records" in page
    assert "it was away" in page


def test_an_empty_archive(tmp_path: Path) -> None:
    """A job that runs every night also runs in the first."""
    (tmp_path / "hours.png").write_bytes(b"of an earlier report")

    made = write(Measurements(position="/archive", top=20), tmp_path)

    assert ("dim", 0, 0) == (made.state, made.facts, len(made.found))
    assert "There are no facts in the archive" in _page(made)
    assert "No daemon was queried" in _page(made)
    assert not (tmp_path / "hours.png").exists()
    assert all(path.exists() for path in made.files)


def test_files_without_the_facts_that_the_table_names(tmp_path: Path) -> None:
    """A report on a damaged archive says what is wrong with it."""
    lists = ("totals", "over_time", "hours", "sizes", "spread", "largest", "batches")
    nothing: dict[str, Any] = {name: [] for name in lists}

    made = write(_measured(**nothing, peaks={}, invalidations=None), tmp_path)

    assert ("bad", "The files have 0 facts, but the log of the table counts 20") == (
        made.state,
        made.found[0].text,
    )
    assert "<h2>Throughput</h2>" in _page(made)
    assert not any(path.suffix == ".png" for path in made.files)


def test_an_archive_without_caches(tmp_path: Path) -> None:
    """Then the page says so."""
    made = write(_measured(stream="events", invalidations=None), tmp_path)

    assert "There are no cache invalidations" in _page(made)
    assert "caches.png" not in {path.name for path in made.files}


def test_an_axis_of_times_has_marks_only_at_their_names() -> None:
    """matplotlib would put eight between two powers of ten."""
    _, (axes,) = charts._figure(True, 2.0)
    charts._log_seconds([axes], [0.5, 90.0])

    assert len(axes.get_yticks()) > 2
    assert [] == list(axes.get_yticks(minor=True))


@pytest.mark.parametrize("days", [[0], [0, 1], [0, 0, 2]])
def test_a_map_of_hours_has_a_line_for_each_day(days: list[int]) -> None:
    """From the first day with facts to the last."""
    hours = [{"at": 86_400 * (20_000 + day) + 3_600 * hour, "facts": 1} for hour, day in enumerate(days)]
    measured: Any = SimpleNamespace(hours=hours, hours_width=3600)
    figure = charts._hours(measured, True)

    assert figure is not None
    assert (max(days) + 0.5, -0.5) == figure.axes[0].get_ylim()
