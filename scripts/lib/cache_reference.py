"""The page of what each release drops from caches, from the table of rules."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from synrepl.caches.rules import Rule, rules_of
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NEWEST

INTRODUCTION: Final = """\
This page has every alias in the rows of `caches`, and every other stream whose rows drop entries of caches:
which caches, which entries of them, and in which releases of Synapse. [Write a
worker](../howto/write-a-worker.md#cache-results) says how the release is chosen, and `synrepl caches
lint` checks the caches of a worker.

A row of `caches` with any other name is the cache of that name: its keys are one entry, or the first part of
several, and null is the whole cache. The column *entries* has the parts of the key: of an alias the room,
each user of the row and each server (`host`) of a user, otherwise fields of the row. In the columns of
releases, `yes` is that the release drops it.

A worker without a vintage of its own also drops what another release does for caches and aliases that its
release lacks. `get_event` is the cache of events, which no row names. Releases count from the first one to
before the last one; `all` is every release since 0.21."""

_WHEN: Final = {
    "": "",
    "members": "the row has users",
    "redacts": "it redacts an event",
    "relates_to": "it relates to an event",
    "member": "the type is `m.room.member`",
    "create": "the type is `m.room.create`",
    "encryption": "the type is `m.room.encryption`",
    "listed": "it is the creation, encryption, name or tombstone of a room",
    "no_room": "it is of no room",
    "tag": "the type is `m.tag`",
    "tag_in_room": "the type is `m.tag`, in a room",
    "tag_elsewhere": "the type is `m.tag`, in no room",
    "of_user": "it is of a user",
    "not_calculated": "the servers to tell are not yet calculated",
    "rejection": "it is accepted or rejected now",
}
_NAMED: Final = (LEGACY, MIDDLE, CURRENT, NEWEST)


def cache_reference() -> Iterator[str]:
    """The lines of the page."""
    yield from ("# What drops entries of caches", "", INTRODUCTION)
    found = sorted(rules_of((), others=True), key=_place)
    for _, group in groupby(found, key=_place):
        rules = list(group)
        row = f", rows `{rules[0].row}`" if rules[0].row else ""
        yield from ("", f"## {rules[0].source}{row}", "")
        heads = ["cache", "entries", "releases", *(str(one) for one in _NAMED), "when"]
        yield "| " + " | ".join(heads) + " |"
        yield "|" + "---|" * len(heads)
        for rule in rules:
            line, source_span, *_ = rule.spans
            span = str(line) if str(line) != "always" else str(source_span)
            has = ["yes" if rule.holds(one.release, others=False) else "" for one in _NAMED]
            entries = {"*": "all", "packed": "each packed key"}.get(rule.key, rule.key.replace("+", ", "))
            cells = [f"`{rule.cache}`", entries, span.replace("always", "all"), *has, _WHEN[rule.when]]
            yield "| " + " | ".join(cells) + " |"


def _place(rule: Rule) -> tuple[int, str, str]:
    aliases = ("cs_cache_fake", "ph_cache_fake", "dr_cache_fake")
    place = aliases.index(rule.source) if rule.source in aliases else len(aliases)
    return (place, rule.source, rule.row)
