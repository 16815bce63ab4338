"""Which media nobody may see."""

from synrepl.streams.stream import Bool, Stream, row

__all__ = ["QUARANTINED_MEDIA", "QuarantinedMedia"]


@row
class QuarantinedMedia:
    """Media was put into quarantine, or released; `origin` is null for our own."""

    origin: str | None
    media_id: str
    quarantined: Bool


# The release is only known to be after 1.66, and 1.163 has it.
QUARANTINED_MEDIA = Stream(
    "quarantined_media", QuarantinedMedia, key=("origin", "media_id"), any_writer=True, since="1.67"
)
