"""Samples of metrics in a text, as a process of Synapse or Prometheus gives them: ``metrics.json``.

Docs: docs/howto/explain.md.
"""

import re
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final, NamedTuple

import msgspec

from synrepl.homeserver.explanation.results import Passage
from synrepl.wire.text import printable

MAX_SAMPLES: Final = 30
"""The most samples of one metric that are shown."""

_NUMBER: Final = r"[-+]?\d{1,20}(?:\.\d{0,24})?(?:[eE][-+]?\d{1,3})?|NaN|[-+]Inf"
_VALUE: Final = re.compile(_NUMBER, re.ASCII)
_SAMPLE: Final = re.compile(
    r"(?P<name>(?:synapse|python|process|scrape|jemalloc)_[a-z_]{2,120}(?::[a-z_]{1,40})?)"
    rf"(?:\{{(?P<labels>[^{{}}]{{0,1000}})\}})?\s+(?:=>\s*)?(?P<value>{_NUMBER})"
    r"(?:\s+@?[\[\d].{0,30})?",
    re.ASCII,
)
_HELP: Final = re.compile(r"# (?:HELP|TYPE|UNIT|EOF) ?(?P<name>[a-z_:]{0,160})", re.ASCII)


OF_EVENTS: Final = (
    "*getEvent* is the cache of events: it may have event_cache_size (10K if it is not set, at the top level"
    " of homeserver.yaml) times its factor, which is getEvent in per_cache_factors, or the global_factor"
)
"""What to do about the cache of events, which has a key of its own."""


class Sample(NamedTuple):
    """One sample: the name of its metric, its labels as they stand there, and its value."""

    name: str
    labels: str
    value: str


class _Metric(NamedTuple):
    name: str
    about: str
    do: str


@cache
def _metrics() -> tuple[_Metric, ...]:
    data = resources.files(__package__).joinpath("metrics.json").read_bytes()
    return tuple(sorted(msgspec.json.decode(data, type=list[_Metric]), key=lambda one: -len(one.name)))


def read_sample(line: str) -> Sample | None:
    """Return the sample that a line is; None if it is none of Synapse's."""
    found = _SAMPLE.fullmatch(line[:2000].strip())
    return None if found is None else Sample(found["name"], found["labels"] or "", found["value"])


def read_samples(line: str) -> list[Sample]:
    """Return the samples in a line: one, or those of an answer of Prometheus."""
    if '"__name__"' not in line:
        sample = read_sample(line)
        return [] if sample is None else [sample]
    try:
        document = msgspec.json.decode(line[line.index("{") :].strip())
    except ValueError:
        return []
    found: list[Sample] = []
    _collect(document, found)
    return found


def _collect(value: Any, found: list[Sample], depth: int = 6) -> None:
    if isinstance(value, dict) and isinstance(value.get("metric"), dict):
        labels = {str(name): str(label) for name, label in value["metric"].items()}
        at = value.get("value")
        name = labels.pop("__name__", "")
        if (
            isinstance(at, list)
            and len(at) == 2
            and _is_number(at[1])
            and name.startswith(("synapse_", "python_", "process_", "jemalloc_"))
        ):
            shown = ",".join(f'{key}="{label}"' for key, label in labels.items())
            found.append(Sample(name[:160], shown[:1000], at[1][:30]))
    elif depth:
        for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            _collect(member, found, depth - 1)


def _is_number(value: Any) -> bool:
    """Whether it is a value as Prometheus writes one."""
    return isinstance(value, str) and _VALUE.fullmatch(value) is not None


def is_comment(line: str) -> bool:
    """Whether a line says of a metric what it is."""
    found = _HELP.match(line)
    return found is not None and (
        not found["name"] or found["name"].startswith(("synapse_", "python_", "jemalloc_"))
    )


def family_of(name: str) -> str:
    """Return the beginning of a metric's name that tells what it is about."""
    return _metric(name).name


@lru_cache(maxsize=1_000)
def _metric(name: str) -> _Metric:
    return next(one for one in _metrics() if name.startswith(one.name))


def explain_samples(samples: list[Sample], count: int) -> Passage:
    """Explain the samples of one family of metrics, of which there are so many."""
    metric = _metric(samples[0].name)
    names = list(dict.fromkeys(one.name for one in samples))
    words = [f"{printable(names[0] if len(names) == 1 else f'{metric.name}...')}: {metric.about}."]
    rows: list[dict[str, Any]] = [
        {"metric": printable(one.name), "labels": printable(one.labels), "value": one.value}
        for one in samples[:MAX_SAMPLES]
    ]
    if len({one[:2] for one in samples}) < len(samples):
        words.append("Some stand there more than once: of several processes, or read at several times.")
    waited = _mean(samples) if metric.name == WAITS else 0.0
    if waited:
        words.insert(
            0, f"On average a statement waited {waited:,.3g} s for a connection of this process' pool."
        )
    if count > MAX_SAMPLES:
        words.append(f"The first {MAX_SAMPLES} of {count:,}.")
    advice = [metric.do] if metric.do else []
    if any('"*getEvent*"' in one.labels for one in samples):
        advice.append(OF_EVENTS)
    severity = "look" if waited >= LONG_WAIT else ""
    return Passage(
        kind="metric", text=printable(names[0]), words=words, advice=advice, fields=rows, severity=severity
    )


WAITS: Final = "synapse_storage_schedule_time"
LONG_WAIT: Final = 0.1
"""From how many seconds on a pool is too small, or its connections are busy for too long."""


def _mean(samples: list[Sample]) -> float:
    """The mean of a sum and a count with the same labels; 0 if they are not there."""
    found = {(one.name, one.labels): float(one.value) for one in samples}
    for (name, labels), total in found.items():
        count = found.get((f"{name.removesuffix('_sum')}_count", labels), 0.0)
        if name.endswith("_sum") and count > 0:
            return total / count
    return 0.0
