"""What a table of Synapse's database is, by its name or its columns: ``relations.json``."""

from functools import cache
from importlib import resources
from typing import Final

import msgspec


class KnownRelation(msgspec.Struct, frozen=True):
    """A table: what it is, what to do next, and what a change by hand does.

    `columns` are those that no other table has, if it can be told by them. `follows` is the stream whose
    positions it has.
    """

    table: str
    columns: list[str]
    about: str
    do: str
    by_hand: str
    follows: str = ""


SEQUENCE: Final = KnownRelation(table="a sequence", columns=[], about="A sequence.", do="", by_hand="")


@cache
def known_relations() -> dict[str, KnownRelation]:
    """Return the tables that are known, by their names."""
    data = resources.files(__package__).joinpath("relations.json").read_bytes()
    return {one.table: one for one in msgspec.json.decode(data, type=list[KnownRelation])}
