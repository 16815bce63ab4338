"""The room of the channel: the RESP port, in the place of a Redis between Synapse's processes."""

from synrepl.rooms import Room


class ChannelRoom(Room):
    """A channel that this daemon serves."""

    name = "channel"
    after = ("replicas",)
