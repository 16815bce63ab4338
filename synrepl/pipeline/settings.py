"""The setting of the pipeline: the snapshot that an empty log is loaded from."""

import dataclasses
from typing import Any

from synrepl.base.settings import setting, text


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """The settings of a daemon that belong to the pipeline."""

    snapshot: str | None = setting(
        None,
        "A directory or URI with a snapshot (synrepl pipeline compact) that an empty log is loaded from."
        " A replica then follows its upstream from that position; a primary begins a new epoch.",
        parse=text,
        metavar="DIR",
        example="/var/lib/synrepl/snapshot",
    )


def snapshot_of(settings: Any) -> str | None:
    """Return the location of the snapshot in a daemon's settings; None without one."""
    assert isinstance(settings, PipelineSettings)
    return settings.snapshot
