"""What the storage of workers lacks, and from which release on workers have it: ``worker_storage.json``.

Read in the packages of `READ`: the attributes of the main process' storage that a worker's does not have,
each with the last release of them in which it lacks it, and the first one after that in which it has it.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers

READ: Final = ("1.28", "1.56", "1.66", "1.85", "1.109", "1.133", "1.163")

FROM_PACKAGES: Final = "Read in packages of Synapse: "
"""The beginning of the sentence that tells from when on workers have it."""

TAKES_ROWS: Final = "replication_task_failed"
"""The message of a row that could not be taken in."""
ROW_NOT_TAKEN: Final = (
    (
        "This process's part of the storage has not what a row of the stream is for, as the cache that it"
        " drops: a fault of the release, or a process of another release wrote the row. What is like it in"
        " this process stays stale."
    ),
    (
        "run the same release in all processes, and update; restart this process where it shows something"
        " old: what it then reads is new"
    ),
)
"""What it means that a worker lacks what a row needs, and what to do."""

_NAME: Final = re.compile(r"object has no attribute '(?P<name>\w{1,100})'", re.ASCII)


@cache
def _lacking() -> Mapping[str, tuple[str, str | None]]:
    data = resources.files(__package__).joinpath("worker_storage.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, tuple[str, str | None]])


def _worker_lacks(match: Match, writers: Writers) -> Passage | None:
    """Explain what a worker lacks by the release from which on it has it."""
    found = _NAME.search(match.text)
    if found is None or (known := _lacking().get(found["name"])) is None:
        return None
    last, first = known
    leave = match.message.do.partition("; ")[0]
    if first is not None:
        told = f"{FROM_PACKAGES}workers lack {found['name']} in {last}, and have it in {first}."
        advice = [f"update to {first} or later", f"until then: {leave}"]
    else:
        told = f"{FROM_PACKAGES}workers lack {found['name']} in {last}, and none up to {READ[-1]} has it."
        advice = [leave]
    return passage_of(match, [match.message.means, told], advice, [])


DETAILS: Final[Mapping[str, Detail]] = {"worker_lacks": _worker_lacks}
"""What explains messages by their values, by the key of the message."""
