"""The room of the channel: the RESP port, in the place of a Redis between Synapse's processes."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from synrepl.rooms import Room

if TYPE_CHECKING:
    from synrepl.daemon.parts import DaemonParts, Part


class ChannelRoom(Room):
    """A channel that this daemon serves."""

    name = "channel"
    after = ("replicas",)
    absent_status = MappingProxyType({"resp": None})
    headings = MappingProxyType({"Listeners and access": "resp resp_ack"})

    def settings_class(self) -> type[Any]:
        from synrepl.channel.settings import ChannelSettings

        return ChannelSettings

    def listeners(self, settings: Any) -> Sequence[tuple[str, str]]:
        return [("resp", one) for one in settings.resp]

    def status_shape(self) -> Mapping[str, Any]:
        from synrepl.http_api.shapes import SOURCE

        return {"resp": {"address": str, "subscribers": int, "publishers": int, "held_back": int, **SOURCE}}

    def is_wanted(self, settings: Any) -> bool:
        return bool(settings.resp)

    async def build(self, daemon: "DaemonParts") -> "Part":
        from synrepl.channel.part import make_part

        return make_part(daemon)
