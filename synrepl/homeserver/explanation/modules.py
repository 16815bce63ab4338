"""What the modules of Synapse do, by the names of their loggers: ``modules.json``."""

import re
from functools import cache, lru_cache
from importlib import resources
from typing import Final, NamedTuple

import msgspec

_PROGRAM: Final = re.compile(
    r"(?<![\w./-])(?P<name>matrix_sdk(?=\w*::)|(?:mautrix|maubot|matrix-appservice)(?=[\w.-]*(?:\[|\s*[|:]|\.))"
    r"|rageshake(?=\.js)|nio(?=\.\w)|FetchHttpApi|sliding-sync(?=\s*\|)|nginx(?=[\[:|])|turnserver(?=[\[:|])|redis-server(?=[\[:])|postgres(?=[\[:|]))",
    re.ASCII,
)
"""The name of another program, where a line of its log has it."""


class Module(NamedTuple):
    """A module and those below it. `is_beside`: nothing that it logs is about streams or workers."""

    name: str
    about: str
    is_beside: bool


@cache
def _modules() -> tuple[Module, ...]:
    data = resources.files(__package__).joinpath("modules.json").read_bytes()
    return tuple(sorted(msgspec.json.decode(data, type=list[Module]), key=lambda one: -len(one.name)))


@lru_cache(maxsize=1_000)
def module_of(logger: str) -> Module | None:
    """Return what is known of the module that has this logger: the narrowest that fits."""
    # Before 1.19 modules of storage were called otherwise, so that a name may go on within a word.
    return next((one for one in _modules() if logger.startswith(one.name)), None)


def program_of(line: str) -> str:
    """Return the name of the other program that logged a line, if it is known, or ""."""
    found = _PROGRAM.search(line[:300])
    return found["name"] if found else ""
