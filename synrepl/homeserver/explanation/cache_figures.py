"""What samples of metrics tell of each cache of a process: too small, often made wrong, or large enough."""

import re
from typing import Final, NamedTuple

import msgspec

from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.samples import Sample
from synrepl.html.humanize import share
from synrepl.wire.text import printable

CACHES: Final = "synapse_util_caches"
"""The family of the metrics of caches."""
MAX_CACHES: Final = 2000
MAX_TOLD: Final = 5
"""The most caches that are told of one kind."""
MANY: Final = 1000
"""The fewest look-ups, or dropped entries, after which a cache is judged."""
FEW_HITS: Final = 0.8
FULL: Final = 0.95

_NAME: Final = re.compile(r"synapse_util_caches_cache[:_]?(?P<what>[a-z_]*)", re.ASCII)
_LABEL: Final = re.compile(r'(?P<key>[a-z_]{1,40})="(?P<value>[^"]{0,200})"', re.ASCII)


class _Figures(NamedTuple):
    name: str
    figures: dict[str, float]

    def of(self, what: str) -> float:
        return self.figures.get(what, 0.0)

    @property
    def looked_up(self) -> float:
        return self.of("") or self.of("total")

    @property
    def is_full(self) -> bool:
        return self.of("size") >= FULL * self.of("max_size") > 0

    def hits(self) -> str:
        return f"{share(self.of('hits'), self.looked_up)} of {self.looked_up:,.0f} look-ups found their value"


class CacheFigures:
    """The caches in the samples of a text, each of one process, so far."""

    def __init__(self) -> None:
        self._caches: dict[tuple[str, ...], _Figures] = {}

    def see(self, sample: Sample) -> None:
        """Keep a sample, if it is of a cache."""
        found = _NAME.fullmatch(sample.name)
        if found is None:
            return
        labels = dict(_LABEL.findall(sample.labels))
        reason, name = labels.pop("reason", ""), labels.get("name", "")
        place = tuple(f"{key}={value}" for key, value in sorted(labels.items()))
        if not name or (place not in self._caches and len(self._caches) >= MAX_CACHES):
            return
        what = found["what"] if not reason else f"{found['what']} {reason}"
        self._caches.setdefault(place, _Figures(name, {})).figures[what] = float(sample.value)

    def told(self, passage: Passage) -> Passage:
        """Return what is said of the samples, with the caches that stand out and what to do about them."""
        small, wrong, roomy = [], [], []
        for one in self._caches.values():
            name = printable(one.name)
            size, most = one.of("size"), one.of("max_size")
            is_asked = one.looked_up >= MANY
            if one.of("evicted_size size") >= MANY and (not most or one.is_full):
                hits = f", and {one.hits()}" if is_asked else ""
                small.append(f"{name} ({one.of('evicted_size size'):,.0f} dropped for want of room{hits})")
            elif is_asked and one.of("evicted_size invalidation") >= MANY and self._misses(one):
                wrong.append(f"{name} ({one.of('evicted_size invalidation'):,.0f} dropped, {one.hits()})")
            elif most and size < most / 2 and is_asked:
                roomy.append(f"{name} ({size:,.0f} of {most:,.0f}, {one.hits()})")
        words = [
            f"{told}: {', '.join(names[:MAX_TOLD])}{' and others' if len(names) > MAX_TOLD else ''}."
            for told, names in (
                ("Too small", small),
                ("Dropped as what they had became wrong (a larger one would not help)", wrong),
                ("With room left (a larger factor would change nothing)", roomy),
            )
            if names
        ]
        advice = []
        if small:
            advice.append(
                "for each that is too small: caches: per_cache_factors: NAME, twice what it is (the"
                " global_factor, 0.5 if not set); then restart that process (newer releases read caches:"
                " again at SIGHUP), and see its hits an hour later"
            )
        if not words:
            return passage
        return msgspec.structs.replace(
            passage,
            words=[*words, *passage.words],
            advice=[*advice, *passage.advice],
            severity="look" if small else "",
        )

    @staticmethod
    def _misses(one: _Figures) -> bool:
        return one.of("hits") < FEW_HITS * one.looked_up
