"""The other homeservers in a log: whether any of them was reached."""

import re
from typing import Final

from synrepl.homeserver.explanation.entries import PastedEntry
from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage
from synrepl.wire.text import printable

LEAST: Final = 4
"""Of so many homeservers that were asked, none must have been reached."""

ALWAYS_THERE: Final = "matrix.org"
"""Where that one is not reached either, two tell as much."""

REASONS: Final = (
    ("DNSLookupError|no results for hostname|find the hostname", "no address of them was found"),
    ("[Nn]o route to host|[Nn]etwork is unreachable|NoRouteError", "there is no way to their addresses"),
    ("[Tt]imeout|[Tt]imed out|ConnectingCancelled", "they did not answer in time"),
    ("certificate verify failed|SSL|TLS", "their certificates were not accepted, or TLS failed"),
    ("[Cc]onnection refused|ConnectionRefused", "they refused the connection"),
)
"""Why a homeserver was not reached. Where all have the same reason it may be one's own; each its own is"
" theirs."""

_ASKED: Final = re.compile(
    r"\{[A-Z]{3,7}-O-\d{1,12}\} (?:\[(?P<name>[^\]\s]{1,255})\] "
    r"(?P<said>Request failed|Completed request|Got response)"
    r"|Sending request failed to (?P<old>[^\s:]{1,255}))(?P<why>.{0,600})",
    re.ASCII | re.DOTALL,
)
_ANSWERED: Final = "HttpResponseException"
_MAX_NAMES: Final = 1_000


class OtherServers:
    """Counts the homeservers that were not reached, until one answers."""

    def __init__(self) -> None:
        self._failed: dict[str, int] = {}
        self._reasons: set[str] = set()
        self._has_answer = False
        self._count = 0

    def see(self, entry: PastedEntry) -> None:
        """Look at a line for a request to another homeserver."""
        found = None if self._has_answer else _ASKED.search(entry.line[:2000])
        if found is None:
            return
        if found["said"] not in (None, "Request failed") or _ANSWERED in found["why"]:
            self._has_answer = True
            return
        self._count += 1
        self._reasons.add(next((told for why, told in REASONS if re.search(why, found["why"])), ""))
        if len(self._failed) < _MAX_NAMES:
            self._failed.setdefault(found["name"] or found["old"], entry.number)

    def passage(self) -> Passage | None:
        """Tell that none was reached, if several were asked and all failed alike."""
        least = 2 if ALWAYS_THERE in self._failed else LEAST
        if self._has_answer or len(self._failed) < least or len(self._reasons) != 1 or "" in self._reasons:
            return None
        names = ", ".join(printable(name) for name in list(self._failed)[:3])
        (why,) = self._reasons
        return Passage(
            kind="no_way_out",
            text=f"{len(self._failed)} homeservers",
            severity="look",
            words=[
                (
                    f"None of the {len(self._failed)} homeservers that were asked ({names}) was reached,"
                    f" and all for one reason: {why}. Unless these lines are a selection of failures,"
                    " that is this server's own way out, and not theirs."
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
