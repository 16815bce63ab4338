"""What a doctor says."""

from typing import Literal

import msgspec

__all__ = ["Complaint", "Diagnosis", "Severity"]

Severity = Literal["error", "warning", "note"]


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or worth to know.

    `severity`: ``error`` (something fails or is lost if left so), ``warning`` (somebody is held up) or
    ``note``. `text` says what it is and what comes of it, `remedy` what to do; `statement` is the SQL that
    does it, where there is one. `mended`: it was done just now.
    """

    severity: Severity
    kind: str
    stream: str
    text: str
    remedy: str = ""
    statement: str = ""
    mended: bool = False


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A whole examination. `kind` is what was found in the database: ``synrepl``, ``synapse`` or ``other``.

    `streams` are those whose ids were examined; `facts_checked` is None where there is no log.
    """

    database: str
    kind: Literal["synrepl", "synapse", "other"]
    streams: list[str]
    complaints: list[Complaint]
    facts_checked: int | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is left that fails, or holds somebody up."""
        return not any(one.severity != "note" and not one.mended for one in self.complaints)
