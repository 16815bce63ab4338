"""The other homeservers in a log: whether any of them was reached."""

import re
from typing import Final

from synrepl.homeserver.explanation.entries import PastedEntry
from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage
from synrepl.wire.text import printable

LEAST: Final = 3
"""Of so many homeservers that were asked, none must have been reached."""

ALWAYS_THERE: Final = "matrix.org"
"""Where that one is not reached either, two tell as much."""

_ASKED: Final = re.compile(
    r"\{[A-Z]{3,7}-O-\d{1,12}\} (?:\[(?P<name>[^\]\s]{1,255})\] "
    r"(?P<said>Request failed|Completed request|Got response)"
    r"|Sending request failed to (?P<old>[^\s:]{1,255}))",
    re.ASCII,
)
_ANSWERED: Final = "HttpResponseException"
_MAX_NAMES: Final = 1_000


class OtherServers:
    """Counts the homeservers that were not reached, until one answers."""

    def __init__(self) -> None:
        self._failed: dict[str, int] = {}
        self._has_answer = False
        self._count = 0

    def see(self, entry: PastedEntry) -> None:
        """Look at a line for a request to another homeserver."""
        found = None if self._has_answer else _ASKED.search(entry.line[:1000])
        if found is None:
            return
        if found["said"] not in (None, "Request failed") or _ANSWERED in entry.line:
            self._has_answer = True
        else:
            self._count += 1
            if len(self._failed) < _MAX_NAMES:
                self._failed.setdefault(found["name"] or found["old"], entry.number)

    def passage(self) -> Passage | None:
        """Tell that none was reached, if several were asked."""
        if self._has_answer or len(self._failed) + (ALWAYS_THERE in self._failed) < LEAST:
            return None
        names = ", ".join(printable(name) for name in list(self._failed)[:LEAST])
        return Passage(
            kind="no_way_out",
            text=f"{len(self._failed)} homeservers",
            severity="look",
            words=[
                (
                    f"None of the {len(self._failed)} homeservers that were asked ({names}) was reached,"
                    " and no line tells of one that was: by that it is this server's own way out, and not"
                    " theirs. Of a selection of failures alone it says nothing."
                )
            ],
            advice=[
                (
                    "try from where this process runs (in its container): curl -sv"
                    " https://matrix.org/_matrix/federation/v1/version. A name without an address: its"
                    " resolver; no answer: firewall, route or IPv6; a certificate: the system's authorities"
                )
            ],
            lines=list(self._failed.values())[:MAX_NUMBERS],
            count=self._count,
        )
