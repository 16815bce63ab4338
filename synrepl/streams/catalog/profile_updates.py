"""Changes of profiles, and of the users who see them."""

from collections.abc import Hashable

from synrepl.streams import jsontext
from synrepl.streams.stream import Stream, row

__all__ = ["PROFILE_UPDATES", "ProfileUpdate"]


@row
class ProfileUpdate:
    """A user changed fields of the profile, or joined or left a room (`action`)."""

    user_id: str
    action: str
    affected_fields: list[str] | None


def _key(row: ProfileUpdate) -> tuple[Hashable, ...]:
    # With the fields: a new avatar does not replace an earlier change of the name.
    return (row.user_id, row.action, jsontext.dumps(row.affected_fields).decode("ascii"))


# The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
PROFILE_UPDATES = Stream("profile_updates", ProfileUpdate, key=_key, any_writer=True, since="1.67")
