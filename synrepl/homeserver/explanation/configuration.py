"""What a start says of an option, a module or the name of a process."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.missing_modules import told_of_module
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.wire.text import printable


def _module(match: Match, writers: Writers) -> Passage | None:
    """Explain a module that Python does not find by its name."""
    told = told_of_module(match.text)
    return None if told is None else passage_of(match, *told, [])


_OPTION: Final = re.compile(
    r"Error in configuration(?: at '(?P<path>[^']{1,200})')?:\s*(?P<told>.*)", re.DOTALL
)


def _option(match: Match, writers: Writers) -> Passage | None:
    """Explain an option that is wrong by its name, and by what Synapse says of it."""
    found = _OPTION.search(match.text)
    if found is None or not found["told"]:
        return None
    what = (
        f"the option {printable(found['path'])} of its configuration"
        if found["path"]
        else "its configuration"
    )
    words = f"Synapse refuses to start: {what} is wrong: {excerpt(found['told'])}"
    return passage_of(match, [words], [match.message.do], [])


def _instance(match: Match, writers: Writers) -> Passage | None:
    """Explain the name of a process that is none of its own."""
    name = match.values[-1].strip()
    if not name.startswith("synapse.app."):
        return None
    words = (
        f"This process has no worker_name: its name is {printable(name)}, as is that of every other without"
        " one."
    )
    step = "set worker_name in its file, as instance_map, stream_writers and the lists of instances have it"
    return msgspec.structs.replace(passage_of(match, [words], [step], []), severity="look")


DETAILS: Final[Mapping[str, Detail]] = {
    "start_name": _instance,
    "cfg_error": _option,
    "module_missing": _module,
}
"""What explains messages by their values, by the key of the message."""
