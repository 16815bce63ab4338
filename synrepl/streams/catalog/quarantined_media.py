"""Quarantined media."""

from synrepl.streams.stream import Bool, Stream, row

__all__ = ["QUARANTINED_MEDIA", "QuarantinedMedia"]


@row
class QuarantinedMedia:
    """Media was quarantined or released; `origin` is null for local media."""

    origin: str | None
    media_id: str
    quarantined: Bool


# The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
QUARANTINED_MEDIA = Stream(
    "quarantined_media", QuarantinedMedia, key=("origin", "media_id"), any_writer=True, since="1.67"
)
