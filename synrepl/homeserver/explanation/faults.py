"""Faults of Synapse's releases, by what the process logs of them: ``faults.json``.

A row has the words that stand in the exception (or in the line that was logged), the files of Synapse of
which one is in the traceback, and the releases. Each is known from a public issue or from Synapse's
changelog, which the row names.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final, Literal

import msgspec

from synrepl.homeserver.explanation.duplicates import IN_AN_UPGRADE
from synrepl.homeserver.explanation.exceptions import MEANINGS
from synrepl.homeserver.explanation.results import Passage

_OF_UPGRADES: Final = tuple(means for means, _ in IN_AN_UPGRADE.values())
"""What is said of a step of an upgrade by the kind of its exception."""

MAX_LOOKED_AT: Final = 4000
"""The most characters of a text in which the words are looked for."""


NOTHING: Final = "nothing is to be done"
"""The advice of what is harmless."""

GENERAL: Final = frozenset(("does_not_fit", "too_deep", "worker_lacks"))
"""Messages that tell only in general what such an exception is."""


class ReleaseFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault: `says` are words that all stand in one text, `files` beginnings of files in the traceback.

    Of `files` one must be in it, if there are any: the words alone may be of much else. `since` is the first
    release that has it ("" is not known), `until` the first one without it ("" is none that was looked at).
    `severity` is "" if that is what failed, and not the fault, that tells it.
    """

    says: list[str]
    files: list[str] = []
    since: str = ""
    until: str = ""
    means: str
    do: str = ""
    severity: Literal["", "error", "look", "normal"] = msgspec.field(name="is", default="")
    source: str

    def is_in(self, texts: Sequence[str], frames: Sequence[str]) -> bool:
        """Whether this fault is what the texts, and the files of a traceback, tell of."""
        if not any(all(word in text for word in self.says) for text in texts):
            return False
        return not self.files or any(frame.startswith(start) for frame in frames for start in self.files)

    @property
    def sentence(self) -> str:
        """What it is, and which releases have it."""
        if not self.until:
            return f"This is known ({self.source}): {self.means}"
        since = (
            f"from {self.since} on, mended in {self.until}"
            if self.since
            else f"before {self.until}, which mends it"
        )
        return f"A fault of Synapse {since} ({self.source}): {self.means}"

    @property
    def steps(self) -> list[str]:
        """What to do about it."""
        update = [f"update to {self.until} or later"] if self.until else []
        return [*update, *([self.do] if self.do else [])]


@cache
def known_faults() -> tuple[ReleaseFault, ...]:
    """Return all faults, in the order of the data: the first that fits counts."""
    data = resources.files(__package__).joinpath("faults.json").read_bytes()
    return tuple(msgspec.json.decode(data, type=list[ReleaseFault]))


def find_fault(texts: Sequence[str], frames: Sequence[str]) -> ReleaseFault | None:
    """Return the fault of a release of which exceptions or a line tell; None if none is known."""
    looked_at = [text[:MAX_LOOKED_AT] for text in texts if text]
    return next((one for one in known_faults() if one.is_in(looked_at, frames)), None)


def possible_faults(frames: Sequence[str]) -> list[str]:
    """Tell of the faults that a traceback without its last line may be of: by its last file, or any."""
    telling = [frame for frame in frames if frame not in _OF_MUCH]
    last = [one for one in known_faults() if frames and frames[-1] in telling and frames[-1] in one.files]
    found = last or [one for one in known_faults() if any(frame in telling for frame in one.files)]
    return [
        f"If the line that is missing has {' and '.join(one.says)}: {one.sentence} Then"
        f" {'; '.join(one.steps) or NOTHING}."
        for one in found[-MAX_POSSIBLE:]
    ]


MAX_POSSIBLE: Final = 2
_OF_MUCH: Final = frozenset(
    (
        "synapse/app/_base.py",
        "synapse/app/generic_worker.py",
        "synapse/handlers/federation.py",
        "synapse/handlers/sync.py",
        "synapse/storage/databases/main/events_worker.py",
        "synapse/types.py",
    )
)
"""Files in which much else fails."""


def with_fault(passage: Passage, fault: ReleaseFault) -> Passage:
    """Say of what failed that it is a known fault: before all, and in place of the general advice."""
    is_harmless = fault.severity == "normal"
    # What is known of it says more than what such an exception means by its kind.
    kept = [word for word in passage.words if word not in MEANINGS and not word.endswith(_OF_UPGRADES)]
    is_told = passage.severity == "error" and passage.kind not in GENERAL
    first = kept[:1] if passage.words[0] in kept else []
    words = [*(first if is_told else []), fault.sentence, *kept[len(first) :]]
    before = "" if passage.cause.endswith(_OF_UPGRADES) else passage.cause
    return msgspec.structs.replace(
        passage,
        words=words,
        advice=fault.steps or [NOTHING] if is_harmless else fault.steps or passage.advice,
        severity=fault.severity or passage.severity,
        cause=f"{before} {fault.sentence}".lstrip() if is_told else "",
    )


def is_of_fault(passage: Passage) -> bool:
    """Whether a known fault is told of in it."""
    return any(one.sentence in passage.words for one in known_faults())


def told_of_fault(fault: ReleaseFault, text: str) -> Passage:
    """Tell of a fault of which nothing else is known."""
    return Passage(
        kind="release_fault",
        text=text,
        severity=fault.severity or "error",
        words=[fault.sentence],
        advice=fault.steps or [NOTHING],
    )
