"""Updates of the database in the background that a release does not know."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.homeserver.explanation.duplicates import UPDATES
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage

_NO_UPDATE: Final = re.compile(r"(?:Error doing update|KeyError): '(?P<name>\w{3,100})'\Z", re.ASCII)


def unknown_update(text: str, reasons: Sequence[Match | str], frames: Sequence[str]) -> str:
    """Return the name of an update that the release does not have, if that is why it failed; else ""."""
    told = [text] if not reasons else [one if isinstance(one, str) else one.text for one in reasons[-1:]]
    is_there = list(frames[-1:]) in ([UPDATES], [] if text else [UPDATES])
    found = _NO_UPDATE.fullmatch(told[0].strip()) if is_there else None
    return found["name"] if found else ""


def told_of_unknown_update(passage: Passage, update: str) -> Passage:
    """Say of an update that failed that the release does not know it."""
    words = [
        (
            f"The table background_updates has an update, {update}, that this release does not know: a newer"
            " one put it there, and an older one was started again; or the name was put there by hand. The"
            " updates after it wait."
        )
    ]
    advice = [
        (
            "start the newer release again, which ends it. If that is not to be, or the name is wrong: delete"
            " its row while Synapse is down"
        )
    ]
    return msgspec.structs.replace(passage, words=words, advice=advice)
