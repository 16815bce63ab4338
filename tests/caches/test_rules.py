"""What each minor release from 1.0 to the newest drops for aliases and rows, as its tag has it."""

from typing import Any, Final

import pytest

from synrepl.caches.rules import rules_of
from synrepl.wire.dialect import Dialect
from tests.releases import MINORS, at, facts

WHEN: Final = {
    "": "",
    "members": "members",
    "each host": "",
    "each member": "",
    "redacts": "redacts",
    "relates_to": "relates_to",
    "m.room.member": "member",
    "m.room.create": "create",
    "m.room.encryption": "encryption",
    "sliding-sync state": "listed",
    "not room_id": "no_room",
    "m.tag": "tag",
    "m.tag, room_id": "tag_in_room",
    "m.tag, not room_id": "tag_elsewhere",
    "entity is a user": "of_user",
    "not hosts_calculated": "not_calculated",
    "rejection_status_changed": "rejection",
    "each packed key": "",
}
KINDS: Final = {
    "events:ev": "events:Event",
    "events:state": "events:State",
    "events:state-all": "events:StateAll",
}
FIELDS: Final = {"room_id": "room", "user_id": "user", "member": "user", "host": "host"}


def key_of(source: str, words: str) -> str:
    """A key as the table of rules has it."""
    if words.startswith("("):
        return "packed"
    if words == "* of room_id":
        return "*"  # Events are cached by event alone: all of them go.
    if source.endswith("_fake"):
        return "+".join(FIELDS.get(word, word) for word in words.split())
    return words.replace("entity", "user_id").replace(" ", "+")


@pytest.mark.parametrize("dialect", MINORS, ids=str)
def test_a_release_drops_what_its_tag_does(dialect: Dialect) -> None:
    """The same caches, the same entries of them, on the same conditions."""
    expected = set[tuple[str, ...]]()
    for source, drops in facts("caches")["invalidates"].items():
        for name, words, when, *ends in drops:
            if at([ends], dialect) and is_there(name, dialect):
                expected.add((KINDS.get(source, source), name, key_of(source, words), WHEN[when]))
    found = set[tuple[str, ...]]()
    for rule in rules_of([dialect], others=False):
        source = f"{rule.source}:{rule.row}" if rule.row else rule.source
        if is_there(rule.cache, dialect):
            found.add((source, rule.cache, rule.key, rule.when))

    assert expected == found


def is_there(name: str, dialect: Dialect) -> bool:
    """Whether the release has the cache; the rules of others do nothing there."""
    spans: list[Any] = facts("caches")["names"].get(name, [["0.21", None]])
    return at(spans, dialect) is not None
