"""What an audit can find: a closed list, for people and for programs that act on it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

__all__ = ["CODES", "AuditResult", "AuditFinding", "AuditFindings"]

AT_MOST: Final = 1_000
"""So many findings of one code are told; of a ruined archive nobody reads more."""

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "manifest": "a manifest cannot be read, or says what cannot be",
        "gap": "no manifest is there for these serials",
        "missing-file": "a file that a manifest names is not there",
        "changed-file": "a file has other bytes than when it was written, or cannot be read",
        "missing-row": "a fact, or a row of one, is not there",
        "doubled-row": "a row is there twice",
        "misplaced-row": "rows are in a file of another stream, or of other serials",
        "out-of-order": "rows of a file are not in the order of their serials",
        "changed-row": "a fact is not what its digest stands for",
        "broken-chain": "a fact does not go on where its writer was",
        "other-history": "the daemon's log is not the one that was archived",
        "differs-from-daemon": "from here on the daemon has something else",
        "missing-in-daemon": "the daemon does not have these facts, though it is of the same history",
        "unnamed-file": "no manifest names this file; it is not part of the archive",
        "daemon-trimmed": "the daemon does not know any more what it had here",
    }
)
"""Each code, and what it means."""

INFO: Final = frozenset({"unnamed-file", "daemon-trimmed"})
"""What is worth knowing, and wrong with nothing."""


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found: `what` is of `CODES`. What is not known is empty, or None.

    Tokens and serials are those concerned, both ends included.
    """

    what: str
    severity: Literal["error", "info"]
    stream: str = ""
    writer: str = ""
    first_token: int | None = None
    last_token: int | None = None
    first_serial: int | None = None
    last_serial: int | None = None
    file: str = ""
    sentence: str


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found, and how much it looked at; `untold` counts findings beyond those that are told."""

    findings: list[AuditFinding]
    untold: int
    batches: int
    files: int
    bytes: int
    facts: int
    rows: int
    first_serial: int
    last_serial: int
    seconds: dict[str, float]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.severity == "info" for finding in self.findings)


class AuditFindings:
    """What was found so far."""

    def __init__(self) -> None:
        self.untold = 0
        self._found: list[AuditFinding] = []
        self._counts: dict[str, int] = {}

    def add(
        self,
        what: str,
        sentence: str,
        *,
        stream: str = "",
        writer: str = "",
        tokens: tuple[int | None, int | None] = (None, None),
        serials: tuple[int | None, int | None] = (None, None),
        file: str = "",
    ) -> None:
        """One more."""
        assert what in CODES, what
        self._counts[what] = self._counts.get(what, 0) + 1
        if self._counts[what] > AT_MOST:
            self.untold += 1
            return
        self._found.append(
            AuditFinding(
                what=what,
                severity="info" if what in INFO else "error",
                stream=stream,
                writer=writer,
                first_token=tokens[0],
                last_token=tokens[1],
                first_serial=serials[0],
                last_serial=serials[1],
                file=file,
                sentence=sentence,
            )
        )

    def told(self) -> list[AuditFinding]:
        """Errors first, each kind in order of serial."""
        return sorted(self._found, key=lambda one: (one.severity == "info", one.first_serial or 0))
