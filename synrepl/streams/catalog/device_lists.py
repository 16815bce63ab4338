"""Changes of users' devices."""

from typing import Annotated

from synrepl.streams.stream import Bool, Gone, Since, Stream, row

__all__ = ["DEVICE_LISTS", "DeviceList"]


@row
class DeviceList:
    """The devices of a user changed.

    Up to 1.66 `user_id` is called ``entity``, and may also be the name of a server to notify.
    """

    user_id: str
    # The exact release of both is unknown: after 1.66, and not after 1.163
    # (docs/reference/peers.md#row-shapes).
    is_signature: Annotated[Bool, Since("1.67", default=False)]
    hosts_calculated: Annotated[Bool, Since("1.67", default=False)]


DEVICE_LISTS = Stream(
    "device_lists",
    DeviceList,
    key="user_id",
    any_writer=True,
    gone=[Gone("destination", after="user_id", until="1.13", default=None, type=str | None, kept=True)],
)
