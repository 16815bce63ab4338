"""Signatures of other users' keys (from 1.6 until 1.67; then part of device_lists)."""

from synrepl.streams.stream import Stream, row

__all__ = ["USER_SIGNATURE", "UserSignature"]


@row
class UserSignature:
    """A user signed keys of other users."""

    user_id: str


USER_SIGNATURE = Stream("user_signature", UserSignature, key="user_id", since="1.6", until="1.67")
