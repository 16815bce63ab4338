"""The dashboard and the alert rules of `contrib` name the metrics that a daemon exports, and all of them."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from scripts import docs
from synrepl.base.metrics import TURN_SECONDS
from synrepl.replicas.relay.replica_registry import REPLICA_STATES
from synrepl.rooms import rooms
from tests.http.builders import SiteCase

ROOT = Path(__file__).resolve().parents[2]
CONTRIB = ROOT / "contrib"
DASHBOARD: dict[str, Any] = json.loads((CONTRIB / "grafana" / "synrepl.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((CONTRIB / "prometheus" / "synrepl.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
LEFT_OUT: Final[frozenset[str]] = frozenset()
"""Exported metrics that the dashboard does not show."""

OF_PROMETHEUS: Final = {"up": frozenset[str]()}
EVERYWHERE: Final = frozenset({"job", "instance"})
FUNCTIONS: Final = frozenset(
    {"sum", "max", "rate", "increase", "changes", "deriv", "histogram_quantile", "label_values"}
)
WORDS: Final = frozenset({"by", "ignoring", "and", "or", "unless"})
GROWING: Final = ("_total", "_bucket", "_sum", "_count")
"""How the names of samples end that only grow: those of counters and of histograms."""

VALUES: Final = {
    "role": frozenset({"primary", "replica", "fenced"}),
    "state": frozenset(REPLICA_STATES),
    "direction": frozenset({"in", "out"}),
    "le": frozenset({*map(str, TURN_SECONDS), "+Inf"}),
}

TOKEN = re.compile(
    r'(?P<space>\s+)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])'
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_]\w*)|(?P<sign>==|!=|>=|<=|=~|!~|[-+*/<>={}(),])"
)


def tokens(expression: str) -> list[tuple[str, str]]:
    """The words of an expression of PromQL, each with its kind. Fails for what it does not know."""
    found, position = [], 0
    while position < len(expression):
        match = TOKEN.match(expression, position)
        assert match is not None, f"{expression!r} at {position}"
        position = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
    return found


def used(expression: str) -> Iterator[tuple[str, dict[str, str], set[str]]]:
    """Each metric of an expression, with the labels that select it and those that it is grouped by."""
    words = tokens(expression)
    depth = 0
    grouped: list[str] = []
    position = 0
    while position < len(words):
        kind, word = words[position]
        depth += {"(": 1, ")": -1}.get(word, 0)
        assert depth >= 0, f"{expression!r} closes what is not open"
        following = words[position + 1][1] if position + 1 < len(words) else ""
        if word == "by":
            end = words.index(("sign", ")"), position)
            grouped = [name for kind, name in words[position + 2 : end] if kind == "name"]
            position = end
        elif word == "ignoring":
            position = words.index(("sign", ")"), position)
        elif kind == "name" and following == "(":
            assert word in FUNCTIONS | WORDS, f"{expression!r}: there is no function {word}"
        elif kind == "name" and word not in FUNCTIONS | WORDS:
            selectors: dict[str, str] = {}
            if following == "{":
                end = words.index(("sign", "}"), position)
                inner = words[position + 2 : end]
                for at in range(0, len(inner), 4):
                    assert [one[0] for one in inner[at : at + 3]] == ["name", "sign", "string"], expression
                    selectors[inner[at][1]] = inner[at + 2][1].strip('"')
                position = end
            yield word, selectors, set(grouped)
        position += 1
    assert depth == 0, f"{expression!r} leaves something open"


def samples(name: str, kind: str, labels: frozenset[str]) -> dict[str, frozenset[str]]:
    """The samples of a metric, with their labels. Those of a histogram have names of their own."""
    if kind != "histogram":
        return {name: labels}
    return {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


EXPRESSIONS: Final = [
    *(target["expr"] for panel in panels() for target in panel["targets"]),
    *(rule["expr"] for rule in RULES),
]


class Scrape(SiteCase):
    """A daemon in memory."""

    def runTest(self) -> None:
        """It is only asked."""


@cache
def _page() -> str:
    """The page of the manual, which is built from the code and not in the repository."""
    return docs.metrics()


@pytest.fixture(scope="module")
def metrics() -> dict[str, dict[str, frozenset[str]]]:
    """The metrics at ``/metrics`` of a daemon with all rooms, with their samples, each with its labels."""
    scrape = Scrape()
    scrape.setUp()
    for room in rooms():
        if (made := room.metrics_class()) is not None:
            made(scrape.metrics.registry)
    text = scrape.get("/metrics").body.decode()
    scrape.doCleanups()
    names = {
        name for name in re.findall(r"^# HELP (\w+)", text, re.MULTILINE) if not name.endswith("_created")
    }
    rows = re.findall(r"^\| `(synrepl_\w+)` \| (\w+) \| (.*?) \|", _page(), re.MULTILINE)
    assert names == {name for name, *_ in rows}
    found = {
        name: samples(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows
    }
    told = {
        name for name in re.findall(r"^(synrepl_\w+)", text, re.MULTILINE) if not name.endswith("_created")
    }
    assert told <= {name for each in found.values() for name in each}
    return found


@pytest.fixture(scope="module")
def exported(metrics: dict[str, dict[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    """The samples at ``/metrics`` of a daemon, with their labels."""
    return {sample: labels for each in metrics.values() for sample, labels in each.items()}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_exist(
    expression: str, exported: dict[str, frozenset[str]]
) -> None:
    known = exported | OF_PROMETHEUS
    for name, selectors, grouped in used(expression):
        assert name in known
        assert set(selectors) | grouped <= known[name] | EVERYWHERE, expression
        for label, value in selectors.items():
            assert value in VALUES.get(label, {value}), f"{expression}: {label} is never {value}"


def test_the_dashboard_shows_every_metric(metrics: dict[str, dict[str, frozenset[str]]]) -> None:
    """Or the test says which are left out. One sample of a histogram shows it."""
    shown = {name for panel in panels() for target in panel["targets"] for name, *_ in used(target["expr"])}

    assert {name for name, each in metrics.items() if not shown & set(each)} == LEFT_OUT


def test_the_legends_name_labels_that_are_there(exported: dict[str, frozenset[str]]) -> None:
    for panel in panels():
        for target in panel["targets"]:
            for name, _, grouped in used(target["expr"]):
                if "histogram_quantile(" in target["expr"]:
                    grouped.discard("le")  # a quantile is that of all buckets
                there = grouped or (set() if "sum(" in target["expr"] else exported[name] | EVERYWHERE)
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= there, target


def test_counters_are_used_as_rates_and_gauges_are_not() -> None:
    """A counter alone says how long a daemon has run. An alert may compare counters with each other.

    A histogram is made of counters.
    """
    for panel in panels():
        for target in panel["targets"]:
            for name in re.findall(rf"(?<!\()\b(synrepl_\w+(?:{'|'.join(GROWING)})\b)", target["expr"]):
                raise AssertionError(f"{panel['title']}: {name} without rate or increase")
            for function, name in re.findall(r"(rate|increase)\((\w+)", target["expr"]):
                assert name.endswith(GROWING), f"{panel['title']}: {function} of the gauge {name}"


def test_the_panels_have_their_own_places_and_words() -> None:
    """Nothing overlaps, nothing goes beyond the 24 columns, and each says what it shows."""
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert x < 24, panel["title"]
                assert (x, y) not in taken, f"{panel['title']} is over {taken[x, y]}"
                taken[x, y] = panel["title"]
    assert all(panel["title"] and panel["description"] for panel in panels())
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_is_whole(rule: dict[str, Any]) -> None:
    """It says how bad it is, what happened and what to do, and names labels that its result has."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    for name, _, grouped in used(rule["expr"]):
        row = re.search(rf"^\| `{name}` \| \w+ \| (.*?) \|", _page(), re.MULTILINE)
        there = grouped or EVERYWHERE | set(re.findall(r"`(\w+)`", row[1] if row else ""))
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= there
    for named in re.findall(r"docs/[\w/.]+\.md", str(rule["annotations"])):
        assert (ROOT / named).exists()
