"""The doctor's results."""

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """One problem or remark.

    `severity`: ``error`` (something fails, may be lost or is not examined), ``warning`` (something is held up
    or may go wrong) or ``note``. `stream` is empty if the whole log or several streams are concerned. `text`
    names the problem and its effect, `remedy` what to do, and `statement` the SQL for it; both may be empty.
    `mended`: it has just been repaired.
    """

    severity: Severity
    kind: str
    stream: str
    text: str
    remedy: str = ""
    statement: str = ""
    mended: bool = False


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A whole examination. `kind` is what the database contains: ``synrepl``, ``synapse`` (perhaps with
    a log of synrepl) or ``other``.

    `streams` are those with ids to examine, and `sequences` those of no stream that were examined.
    `unique_tables` are those whose unique indexes were compared with what the homeserver makes.
    `facts_checked` is None if there is no log, or it was unreadable.
    """

    database: str
    kind: Literal["synrepl", "synapse", "other"]
    streams: list[str]
    complaints: list[Complaint]
    facts_checked: int | None = None
    sequences: list[str] = []
    unique_tables: list[str] = []

    @property
    def is_healthy(self) -> bool:
        """Whether every error and warning has been repaired, if there was any."""
        return not any(one.severity != "note" and not one.mended for one in self.complaints)
