"""The room of ids: id generators for writers of the homeserver's tables. A library alone."""

from synrepl.rooms import Room


class IdsRoom(Room):
    """Ids that several writers allocate in the same tables."""

    name = "ids"
