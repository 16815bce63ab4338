"""The settings of retention."""

import dataclasses

from synrepl.base.settings import duration, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """How long the log keeps facts."""

    retain_seconds: float = setting(
        "7d", "How long the log retains facts that no lease needs.", parse=duration
    )
