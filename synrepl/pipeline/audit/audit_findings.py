"""Findings of an audit: a closed list of codes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec

AT_MOST: Final = 1_000
"""Maximum number of findings reported per code."""

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "table": "the log of the table contradicts the files",
        "gap": "no file of the table has these serials",
        "missing-file": "a file of the table does not exist",
        "changed-file": "a file was changed, or cannot be read",
        "missing-row": "a fact or a row is missing",
        "doubled-row": "a row is duplicated",
        "misplaced-row": "rows are in a file of another stream, or of other serials",
        "out-of-order": "rows of a file are not in order of serial",
        "changed-row": "a fact does not match its digest",
        "broken-chain": "a fact does not continue the previous fact of its writer",
        "lost-fact": "the log could not get these facts of a writer, and says so itself",
        "other-history": "the daemon's log is not the one that was archived",
        "differs-from-daemon": "the daemon's facts differ from the archived ones at this serial or before",
        "missing-in-daemon": "the daemon lacks these facts of the same history",
        "unnamed-file": "no version of the table in the last week has this file; `vacuum` removes it",
        "daemon-trimmed": "the daemon has trimmed its digests of these serials",
        "unverified-log": "nothing has the checksums of these files of the log of the table",
        "unproven-fact": "no primary may have written this fact of the daemon's own streams",
    }
)
"""The codes and their meanings."""

INFO: Final = frozenset({"lost-fact", "unnamed-file", "daemon-trimmed", "unverified-log", "unproven-fact"})
"""Codes that are not errors."""


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding: `what` is one of `CODES`. Ranges are inclusive; unknown fields are empty or None."""

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


class ChainBreak(msgspec.Struct, frozen=True, kw_only=True):
    """A fact whose `prev_token` is not `expected`, the position of its writer since the serial `after`.

    `after` is 0 if unknown. `kind` is ``missing`` (facts between the tokens are missing), ``lost`` (the same,
    and the log says so itself), ``again`` (tokens are repeated) or ``epoch_start`` (explained by a new
    epoch; an unexplained break at its start is one of the others).
    """

    stream: str
    writer: str
    serial: int
    epoch: int = 0
    expected: int
    prev_token: int
    token: int
    committed_ms: int = 0
    kind: str = "missing"
    after: int = 0


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of an audit of a `version` of the table. `omitted` counts findings beyond `AT_MOST`."""

    findings: list[AuditFinding]
    omitted: int
    version: int
    files: int
    bytes: int
    facts: int
    rows: int
    first_serial: int
    last_serial: int
    seconds: dict[str, float]

    @property
    def is_clean(self) -> bool:
        """Whether there are no errors."""
        return all(finding.severity == "info" for finding in self.findings)


class AuditFindings:
    """Collects findings, at most `AT_MOST` of each code."""

    def __init__(self) -> None:
        self.omitted = 0
        self._found: list[AuditFinding] = []
        self._counts: Counter[str] = Counter()

    def add(
        self,
        what: str,
        sentence: str,
        stream: str = "",
        writer: str = "",
        tokens: Sequence[int] = (),
        serials: Sequence[int] = (),
        file: str = "",
    ) -> None:
        """Add a finding, with the first and the last of these tokens and serials."""
        assert what in CODES, what
        self._counts[what] += 1
        if self._counts[what] > AT_MOST:
            self.omitted += 1
            return
        finding = AuditFinding(
            what=what,
            severity="info" if what in INFO else "error",
            stream=stream,
            writer=writer,
            first_token=tokens[0] if tokens else None,
            last_token=tokens[-1] if tokens else None,
            first_serial=serials[0] if serials else None,
            last_serial=serials[-1] if serials else None,
            file=file,
            sentence=sentence,
        )
        self._found.append(finding)

    def listed(self) -> list[AuditFinding]:
        """Return the findings: errors first, then by serial."""
        return sorted(self._found, key=lambda one: (one.severity == "info", one.first_serial or 0))
