"""Recipients of new to-device messages."""

from synrepl.streams.stream import Stream, row

__all__ = ["TO_DEVICE", "ToDevice"]


@row
class ToDevice:
    """There are messages for a local user, or for another server."""

    entity: str


TO_DEVICE = Stream("to_device", ToDevice, key="entity", any_writer=True)
