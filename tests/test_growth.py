"""The benchmark of growth: its points, and how the manual shows them."""

from collections.abc import Iterator
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import msgspec
import pytest

from scripts import growth_page
from scripts.bench_parts import growth
from scripts.bench_parts.growth_points import Axis, Point
from scripts.bench_parts.measuring import EVENT, event
from scripts.growth_page import BEGIN, END, draw, read, tables, with_tables
from scripts.lib.diagrams import checksum


def points() -> list[Point]:
    """Two followers' figures at three points, of which one was not measured."""
    axis = Axis("followers")
    return [
        axis.point(10, "sending", 0.8, "us a row"),
        axis.point(10, "reading", 200_000, "rows/s"),
        axis.point(50, "sending", 1.0, "us a row"),
        axis.point(50, "reading", 100_000, "rows/s"),
        axis.unmeasured(5_000, "too few descriptors"),
    ]


@pytest.mark.parametrize(
    ("unit", "first", "value", "expected"),
    [
        ("us a row", 2.0, 3.0, 1.5),
        ("KiB a follower", 2.0, 1.0, 0.5),
        ("rows/s", 200.0, 100.0, 2.0),
        ("MB/s", 100.0, 200.0, 0.5),
        ("us a row", -0.1, 3.0, None),
        ("us a row", 2.0, -0.1, None),
    ],
)
def test_a_cost_is_compared_with_the_first_point(
    unit: str, first: float, value: float, expected: float | None
) -> None:
    """The cost of a rate is the time that one row takes. What is lost in noise has no ratio."""
    axis = Axis("streams")

    axis.point(1, "work", first, unit)
    axis.point(1, "other work", 7.0, unit)

    assert expected == axis.point(10, "work", value, unit).of_first


def test_points_say_where_they_are() -> None:
    """In the table of the benchmark, which knows nothing of axes, and while it runs."""
    _, _, more, _, missing = points()

    assert "followers 50: sending: 1 us a row 1.25 x" == str(more)
    assert "followers 5,000: not measured: too few descriptors" == str(missing)


def test_tables_have_a_column_for_each_point() -> None:
    """With the ratio, and with the reason for what is missing."""
    source = msgspec.json.encode({"growth": points()}).decode()

    assert """\
| followers | 10 | 50 | 5,000 | |
|---|---:|---:|---:|---|
| sending | 0.8 | 1 (1.25 x) | - | us a row |
| reading | 200,000 | 100,000 (2.00 x) | - | rows/s |

5,000: not measured: too few descriptors.
""" == tables(read(source))


def test_tables_replace_those_of_the_last_run() -> None:
    """What is around them stays."""
    page = f"before\n{BEGIN}\nold\n{END}after\n"

    assert f"before\n{BEGIN}\nnew\n{END}after\n" == with_tables(page, "new")


def test_the_picture_has_words_for_who_cannot_see_it() -> None:
    """A chart for each axis, in a font of the reader's, with a background that suits its colors."""
    axes = {name: points() for name in ("followers", "streams", "facts", "bytes a row")}

    drawn = ET.fromstring(draw(axes))

    assert ["title", "desc"] == [child.tag.rpartition("}")[2] for child in drawn][:2]
    assert ("img", "title desc") == (drawn.get("role"), drawn.get("aria-labelledby"))
    assert "background: white" in (drawn.get("style") or "")
    texts = {text for one in drawn.iter("{http://www.w3.org/2000/svg}text") for text in one.itertext()}
    assert {"followers", "streams", "facts", "bytes a row", "sending", "reading", "10"} <= texts


def test_the_manual_shows_the_last_run() -> None:
    """Otherwise: scripts/growth-page."""
    source = growth_page.RESULTS.read_text("utf-8")
    page = growth_page.PAGE.read_text("utf-8")

    assert with_tables(page, tables(read(source))) == page
    assert f"<!-- {checksum(source)} -->" in growth_page.PICTURE.read_text("utf-8")


def test_a_log_is_filled_as_far_as_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the disk, half of which stays free, and in the time that was asked for."""
    free = 8 * 1_000_000 * growth.BYTES_A_FACT

    def log(axis: Axis, plan: growth.Plan, folder: str, count: int) -> Iterator[Point]:
        yield axis.point(count, "start", 1.0, "s")

    monkeypatch.setattr(growth, "_log", log)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
    plan = growth.Plan(facts=(1_000_000, 3_000_000, 10_000_000, 100_000_000))

    found = list(growth._facts(plan, 20_000_000))

    assert [
        (1_000_000, "1.00 x"),
        (3_000_000, "1.00 x"),
        (10_000_000, "not measured: the log needs 1 GB of disk, more than half of what is free"),
        (20_000_000, "not measured: the log needs 3 GB of disk, more than half of what is free"),
        (100_000_000, "not measured: --rows 100000000 measures it, and takes longer"),
    ] == [(one.at, one.note) for one in found]


def test_followers_beyond_the_descriptors_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon keeps some for its files."""
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1_000, 1_000))

    (found,) = growth._followers(growth.Plan(followers=[500]))

    assert "followers 500: not measured: a process may have 1,000 open files here" == str(found)


@pytest.mark.parametrize("size", [100, 1_000, 100_000])
def test_an_event_has_the_size_that_was_asked_for(size: int) -> None:
    """Or that of the shortest one."""
    assert size == len(event(size))
    assert EVENT == event() == event(10)
