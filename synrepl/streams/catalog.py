"""The stream catalog: the streams of Synapse and of synrepl itself."""

from collections.abc import Hashable
from typing import Annotated, Any, Final, Literal

from synrepl.streams.declaration import Declaration as Declaration  # noqa: PLC0414  # exported
from synrepl.streams.origin import Origin
from synrepl.streams.stream import Bool, BoolSpelling, Checksum, Gone, Since, Size, Stream, row
from synrepl.wire import jsontext


# Events of rooms, and changes of their current state.
@row(tag="ev", flat_until="0.99.4")
class Event:
    """An event was persisted."""

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str | None
    relates_to: Annotated[str | None, Since("0.99.5", default=None)]
    membership: Annotated[str | None, Since("1.23", default=None)]
    rejected: Annotated[Bool, Since("1.23", default=False)]
    outlier: Annotated[Bool, Since("1.64", default=False)]


@row(tag="state", since="0.99.4")
class State:
    """An entry of a room's current state changed, or was removed if `event_id` is null."""

    room_id: str
    type: str
    state_key: str
    event_id: str | None


@row(tag="state-all", since="1.96")
class StateAll:
    """Much of a room's current state changed: read all of it again."""

    room_id: str


def _event_key(row: Event | State | StateAll) -> tuple[Hashable, ...]:
    match row:
        case Event():
            return ("ev", row.event_id)
        case State():
            return ("state", row.room_id, row.type, row.state_key)
        case StateAll():
            return ("state-all", row.room_id)


EVENTS: Stream[Event | State | StateAll] = Stream(
    "events",
    Event | State | StateAll,
    key=_event_key,
    tombstone={State: lambda row: row.event_id is None},
)


# Backfill: old events fetched from other servers.
@row
class Backfilled:
    """An event that is older than the known events of its room."""

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str | None
    relates_to: Annotated[str | None, Since("0.99.5", default=None)]


# Real masters send the tokens of one burst in descending order (docs/reference/peers.md#tokens).
BACKFILL = Stream("backfill", Backfilled, key="event_id", descends=True)


@row
class Presence:
    """The current presence of a user. Times are in milliseconds."""

    user_id: str
    state: str
    last_active_ts: int
    last_federation_update_ts: int
    last_user_sync_ts: int
    status_msg: str | None
    currently_active: Bool


PRESENCE = Stream("presence", Presence, key="user_id", ephemeral=True)


@row
class PresenceFederation:
    """A server to send the presence of a user to."""

    destination: str
    user_id: str


# A queue in the writer's memory: after a restart tokens begin at zero again (docs/reference/peers.md#tokens).
PRESENCE_FEDERATION = Stream(
    "presence_federation",
    PresenceFederation,
    key=("destination", "user_id"),
    monotonic=False,
    ephemeral=True,
    since="1.33",
)


@row
class Typing:
    """All users who are now typing in a room."""

    room_id: str
    user_ids: list[str]


# Typing is not stored: after a restart of the writer tokens begin at zero again
# (docs/reference/peers.md#tokens).
TYPING = Stream("typing", Typing, key="room_id", monotonic=False, ephemeral=True)


@row
class Receipt:
    """A user has read a room, or a thread of it, up to an event."""

    room_id: str
    receipt_type: str
    user_id: str
    event_id: str
    thread_id: Annotated[str | None, Since("1.69", default=None)]
    data: dict[str, Any]


RECEIPTS = Stream("receipts", Receipt, key=("room_id", "receipt_type", "user_id", "thread_id"))


@row
class PushRules:
    """The push rules of a user changed."""

    user_id: str


PUSH_RULES = Stream("push_rules", PushRules, key="user_id", any_writer=True)


# Pushers: the recipients of push notifications.
@row
class Pusher:
    """A pusher was set or deleted. Push keys may contain spaces."""

    user_id: str
    app_id: str
    pushkey: str
    deleted: Bool


PUSHERS = Stream(
    "pushers",
    Pusher,
    key=("user_id", "app_id", "pushkey"),
    any_writer=True,
    tombstone=lambda row: row.deleted,
)


@row
class CacheInvalidation:
    """A request to drop an entry of a cache, or all its entries if `keys` is null. The name may be an alias.

    The empty list is an ordinary key: that of a cache without arguments.
    """

    cache_func: str
    keys: list[str] | None
    invalidation_ts: int | None


def _cache_key(row: CacheInvalidation) -> tuple[Hashable, ...]:
    return (row.cache_func, jsontext.dumps(row.keys).decode("ascii"))


# Real masters send rows ahead of their position, and then again (docs/reference/peers.md#tokens).
CACHES = Stream("caches", CacheInvalidation, key=_cache_key, ordered=False)


def _is_public(visibility: bool | int | str) -> bool:
    return visibility == "public" if isinstance(visibility, str) else bool(visibility)


@row
class PublicRoom:
    """A room was added to the directory, or removed from it."""

    room_id: str
    # Masters on SQLite write numbers (docs/reference/peers.md#json); the words are those of the
    # client-server API.
    visibility: Annotated[
        bool, BoolSpelling(accepts=bool | Literal[0, 1, "public", "private"], read=_is_public)
    ]
    appservice_id: str | None
    network_id: str | None


PUBLIC_ROOMS = Stream(
    "public_rooms", PublicRoom, key=("room_id", "appservice_id", "network_id"), until="1.41"
)


@row
class DeviceList:
    """The devices of a user changed.

    From 1.13 to 1.109 `user_id` is called ``entity``, and may also be the name of a server to notify. With
    `is_signature` the user signed keys, and no device changed. A row replaces only rows that agree with it in
    all fields, `destination` included.
    """

    user_id: str
    is_signature: Annotated[Bool, Since("1.76", default=False)]
    hosts_calculated: Annotated[Bool, Since("1.110", default=False)]


def _device_list_key(row: DeviceList) -> tuple[Hashable, ...]:
    # Receivers drop other caches for each of these, and a sender of 1.0 needs every destination.
    return (row.user_id, row.is_signature, row.hosts_calculated, getattr(row, "destination", None))


DEVICE_LISTS = Stream(
    "device_lists",
    DeviceList,
    key=_device_list_key,
    any_writer=True,
    gone=[Gone("destination", after="user_id", until="1.13", default=None, type=str | None, kept=True)],
)


@row
class ToDevice:
    """There are messages for a local user, or for another server."""

    entity: str


TO_DEVICE = Stream("to_device", ToDevice, key="entity", any_writer=True)


@row
class Federation:
    """An item for other servers: its type (``p``, ``pd``, ``k``, ``d``...) and its content."""

    type: str
    data: dict[str, Any]


# A queue in the master's memory: after a restart tokens begin at zero again (docs/reference/peers.md#tokens).
# No row replaces another.
FEDERATION = Stream("federation", Federation, key=None, monotonic=False, ephemeral=True)


# Users' tags of rooms (until 1.76; then part of account_data).
@row
class TagAccountData:
    """The tags of a room changed. Masters write `data` as a string of JSON."""

    user_id: str
    room_id: str
    data: str | dict[str, Any]


TAG_ACCOUNT_DATA = Stream("tag_account_data", TagAccountData, key=("user_id", "room_id"), until="1.76")


@row
class AccountData:
    """Account data changed; `room_id` is null for global data."""

    user_id: str
    room_id: str | None
    data_type: str


ACCOUNT_DATA = Stream(
    "account_data",
    AccountData,
    key=("user_id", "room_id", "data_type"),
    any_writer=True,
    gone=[Gone("data", after="data_type", until="1.7", default=None, kept=True)],
)


@row
class Group:
    """The membership of a user in a group changed."""

    group_id: str
    user_id: str
    type: str
    content: dict[str, Any]


GROUPS = Stream("groups", Group, key=("group_id", "user_id"), since="0.24", until="1.61")


# Signatures of other users' keys (from 1.6 until 1.76; then part of device_lists).
@row
class UserSignature:
    """A user signed keys of other users."""

    user_id: str


USER_SIGNATURE = Stream("user_signature", UserSignature, key="user_id", since="1.6", until="1.76")


@row
class ProfileUpdate:
    """A user changed fields of their profile, or joined or left a room; `action` says which."""

    user_id: str
    action: str
    affected_fields: list[str] | None


def _profile_key(row: ProfileUpdate) -> tuple[Hashable, ...]:
    # The key includes `affected_fields`: a changed avatar does not replace an earlier change of the name.
    return (row.user_id, row.action, jsontext.dumps(row.affected_fields).decode("ascii"))


PROFILE_UPDATES = Stream("profile_updates", ProfileUpdate, key=_profile_key, any_writer=True, since="1.159")


@row
class StickyEvent:
    """An event became sticky."""

    room_id: str
    event_id: str


STICKY_EVENTS = Stream(
    "sticky_events", StickyEvent, key=("room_id", "event_id"), any_writer=True, since="1.148"
)


@row
class ThreadSubscription:
    """A user subscribed to a thread, or unsubscribed; `event_id` is the root of the thread."""

    user_id: str
    room_id: str
    event_id: str


THREAD_SUBSCRIPTIONS = Stream(
    "thread_subscriptions",
    ThreadSubscription,
    key=("user_id", "room_id", "event_id"),
    any_writer=True,
    since="1.135",
)


@row
class UnPartialStatedRoom:
    """A room that was joined with partial state now has full state."""

    room_id: str


UN_PARTIAL_STATED_ROOM = Stream("un_partial_stated_room", UnPartialStatedRoom, key="room_id", since="1.74")


@row
class UnPartialStatedEvent:
    """An event with partial state now has full state, which may change whether it is rejected."""

    event_id: str
    rejection_status_changed: Bool


UN_PARTIAL_STATED_EVENT = Stream(
    "un_partial_stated_event", UnPartialStatedEvent, key="event_id", since="1.75"
)


@row
class QuarantinedMedia:
    """Media was quarantined or released; `origin` is null for local media."""

    origin: str | None
    media_id: str
    quarantined: Bool


QUARANTINED_MEDIA = Stream(
    "quarantined_media", QuarantinedMedia, key=("origin", "media_id"), any_writer=True, since="1.152"
)


# Files of the file store: their names, checksums and sizes.

MAX_FILE_NAME: Final = 1_024
"""The maximum length of a file's name, in characters."""

REFERENCE: Final = "\x00\x01"
"""How the names begin that the index of files gives to columns of declared streams."""


@row
class File:
    """A file was created, modified or deleted.

    `sha256` and `size` (in bytes) describe its content; both are null for a deleted file. ``create`` and
    ``modify`` have the same effect: the name now has this content.
    """

    action: Literal["create", "modify", "delete"]
    name: str
    sha256: Checksum | None
    size: Size | None

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_FILE_NAME:
            raise ValueError(f"the name must have 1 to {MAX_FILE_NAME} characters, not {len(self.name)}")
        has = self.sha256 is not None, self.size is not None
        if has != (self.action != "delete",) * 2:
            raise ValueError("`create` and `modify` need a sha256 and a size, `delete` must have neither")


# Only the native dialect has this stream: peers that speak a release of Synapse do not receive it.
FILES = Stream(
    "files",
    File,
    key="name",
    tombstone=lambda row: row.action == "delete",
    since="999.0",
    origin=Origin.APPEND,
)
# Or whoever may write names could take away the files of other streams' rows.
FILES.refusal = lambda row: (
    "names that begin with \\0\\1 are reserved" if row.name.startswith(REFERENCE) else ""
)


# Declarations of operators' own streams; like `FILES`, only the native dialect has this stream.
DECLARATIONS = Stream("declarations", Declaration, key="name", since="999.0", origin=Origin.DAEMON)


# What was promised to appends that wait for replicas; only the native dialect has this stream.


@row
class Promise:
    """From here on appends may be answered once some of these replicas have them on disk.

    `acks` are the ways in which appends wait: a number of replicas, or names with commas. `replicas` are
    those whose acknowledgements count, each with its uuid, its name and its address (``NATIVE HTTP``).
    """

    kind: Literal["acks"]
    acks: list[str]
    replicas: list[list[str]]


PROMISES = Stream("promises", Promise, key="kind", since="999.0", origin=Origin.DAEMON)


# Before the facts of each atomic append; only the native dialect has this stream.


@row
class AtomicAppend:
    """The next `facts` facts of the log belong together: one append, all or nothing."""

    facts: int


ATOMIC_APPENDS = Stream("atomic_appends", AtomicAppend, since="999.0", origin=Origin.DAEMON)


# What came and could not be read; only the native dialect has this stream.


@row
class RefusedFact:
    """A fact of another stream that could not be read: its `rows` as they were sent, and `why`.

    `publisher` is who sent it: a key, or the source. `rows` are null once it was replayed or removed.
    """

    stream: str
    writer: str
    token: int
    publisher: str
    why: str
    rows: list[str] | None


REFUSED = Stream(
    "refused",
    RefusedFact,
    key=("stream", "writer", "token"),
    tombstone=lambda row: row.rows is None,
    since="999.0",
    origin=Origin.DAEMON,
)

# In the order of declaration, which is that in which masters announce positions.
ALL: tuple[Stream[Any], ...] = tuple(value for value in list(vars().values()) if isinstance(value, Stream))

_ORIGINS: Final = {stream.name: stream.origin for stream in ALL}

OWN_STREAMS: Final = frozenset(name for name, origin in _ORIGINS.items() if origin is Origin.DAEMON)
"""The streams of a daemon's own state, which it writes itself: their facts are of no use in another log."""


def takes(stream: str, origin: Origin) -> bool:
    """Whether the stream of this name takes facts that come in this way. An unknown stream takes all."""
    return origin >= _ORIGINS.get(stream, Origin.SOURCE)


PUBLIC: Final = frozenset(
    {"ALL", *(name for name, value in list(vars().items()) if isinstance(value, Stream))}
    | {kind.row.__name__ for stream in ALL for kind in stream._kinds}
)
"""The names that can be imported from `synrepl.streams`: the streams, `ALL`, and the classes of rows."""
