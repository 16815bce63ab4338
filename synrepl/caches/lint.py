"""Cache lint: finds probable mistakes in a worker's caches."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from synrepl.caches.entries import Shape
from synrepl.caches.registry import CacheRegistry, NameCounts

Kind = Literal["no-route", "misshapen", "unknown", "never-seen"]


class CacheWarning(msgspec.Struct, frozen=True):
    """A finding to check.

    * ``no-route``: nothing known invalidates this cache
    * ``misshapen``: invalidations have keys of another shape, so each drops all of every cache it reaches
    * ``unknown``: a name on the wire is neither a cache nor an alias of this worker
    * ``never-seen``: the aliases that invalidate this cache have not occurred
    """

    kind: Kind
    cache: str
    text: str


def lint(
    registry: CacheRegistry, seen: Mapping[str, int], lengths: Mapping[str, Collection[int]] | None = None
) -> list[CacheWarning]:
    """Return the findings, most urgent first.

    `seen` counts the names on the ``caches`` stream; `lengths` has the known lengths of the keys of each.
    """
    return [
        *_no_route(registry, seen),
        *_misshapen(registry, lengths or {}),
        *_unknown(registry, seen),
        *_never_seen(registry, seen),
    ]


def _no_route(registry: CacheRegistry, seen: Mapping[str, int]) -> Iterator[CacheWarning]:
    for name in registry.caches:
        if registry.cache(name).streams == {"caches"} and not _routes(registry, name) and name not in seen:
            yield CacheWarning(
                "no-route",
                name,
                f"Nothing known invalidates {name}: no alias and no stream reaches it, and its name was not"
                " seen. Announce its changes under this name, declare streams=() if it never"
                " changes, or compare the vintage with the release of the writers (synrepl.Vintage.of).",
            )


def _misshapen(registry: CacheRegistry, lengths: Mapping[str, Collection[int]]) -> Iterator[CacheWarning]:
    wrong: dict[str, dict[str, None]] = {}
    for source, example in registry.vintage.examples():
        if example.cache in registry.caches and example.key is not None:
            shape = registry.cache(example.cache).shape
            if not shape.fits(example.key):
                why = f"{source} of {registry.vintage.name} gives keys of {_arguments(len(example.key))}"
                wrong.setdefault(example.cache, {})[why] = None
    for name, of_lengths in lengths.items():
        if name in registry.caches and not registry.vintage.is_alias(name):
            shape = registry.cache(name).shape
            for length in sorted(set(of_lengths)):
                if not shape.fits(("",) * length):
                    wrong.setdefault(name, {})[f"keys of {_arguments(length)} were seen"] = None
    for name, info in registry.caches.items():
        if info.misshapen and name not in wrong:
            wrong[name] = {f"{info.misshapen} keys had another length": None}
    for name, whys in sorted(wrong.items()):
        yield CacheWarning("misshapen", name, _misshapen_text(name, registry.cache(name).shape, list(whys)))
    for name, count in registry.misshapen.items():
        yield CacheWarning(
            "misshapen",
            name,
            f"The alias {name} had unsupported keys {count} times; each time every cache that it reaches was"
            " dropped. Look for a writer of another release, and choose its vintage:"
            ' synrepl.Caches(vintage=synrepl.Vintage.of("1.66")).',
        )


def _misshapen_text(name: str, shape: Shape, whys: list[str]) -> str:
    takes = f"keys must have {shape.length}" + (" or fewer" if shape.tree and shape.length > 1 else "")
    do = "Give the function the arguments that writers name" + (
        "." if shape.tree else ", or declare the cache with tree=True."
    )
    return f"{name} gets keys of a wrong length, each of which empties it: {', '.join(whys)}; {takes}. {do}"


def _unknown(registry: CacheRegistry, seen: Mapping[str, int]) -> Iterator[CacheWarning]:
    for name, count in sorted(seen.items()):
        if name in registry.caches or registry.vintage.is_alias(name) or name == NameCounts.REST:
            continue
        near = difflib.get_close_matches(name, list(registry.caches), n=1, cutoff=0.85)
        do = f"Is it {near[0]}?" if near else "Ignore this if the worker does not cache it."
        yield CacheWarning(
            "unknown",
            name,
            f"{name} was seen {count} times, but is neither a cache nor an alias of this worker. {do}",
        )


def _never_seen(registry: CacheRegistry, seen: Mapping[str, int]) -> Iterator[CacheWarning]:
    for name in registry.caches:
        routes = _routes(registry, name)
        aliases = [route for route in routes if registry.vintage.is_alias(route)]
        if aliases and aliases == routes and not any(alias in seen for alias in [name, *aliases]):
            yield CacheWarning(
                "never-seen",
                name,
                f"{name} is invalidated only by {', '.join(aliases)}, which did not occur. Watch for longer,"
                " or compare the vintage with the release of the writers (synrepl.Vintage.of).",
            )


def _routes(registry: CacheRegistry, cache: str) -> list[str]:
    vintage = registry.vintage
    aliases = [alias for alias in vintage.aliases if cache in vintage.reaches(alias)]
    streams = []
    for stream in vintage.implications:
        reached = vintage.reached_by(stream)
        if reached is None or cache in reached:
            streams.append(stream)
    return aliases + streams


def _arguments(count: int) -> str:
    return f"{count} argument" + ("" if count == 1 else "s")
