"""The stream catalog: the streams of Synapse and of synrepl itself, one file each."""

from typing import Any

from synrepl.streams.catalog.account_data import ACCOUNT_DATA, AccountData
from synrepl.streams.catalog.backfill import BACKFILL, Backfilled
from synrepl.streams.catalog.caches import CACHES, CacheInvalidation
from synrepl.streams.catalog.device_lists import DEVICE_LISTS, DeviceList
from synrepl.streams.catalog.events import EVENTS, Event, State, StateAll
from synrepl.streams.catalog.federation import FEDERATION, Federation
from synrepl.streams.catalog.files import FILES, File
from synrepl.streams.catalog.groups import GROUPS, Group
from synrepl.streams.catalog.presence import PRESENCE, Presence
from synrepl.streams.catalog.presence_federation import PRESENCE_FEDERATION, PresenceFederation
from synrepl.streams.catalog.profile_updates import PROFILE_UPDATES, ProfileUpdate
from synrepl.streams.catalog.public_rooms import PUBLIC_ROOMS, PublicRoom
from synrepl.streams.catalog.push_rules import PUSH_RULES, PushRules
from synrepl.streams.catalog.pushers import PUSHERS, Pusher
from synrepl.streams.catalog.quarantined_media import QUARANTINED_MEDIA, QuarantinedMedia
from synrepl.streams.catalog.receipts import RECEIPTS, Receipt
from synrepl.streams.catalog.sticky_events import STICKY_EVENTS, StickyEvent
from synrepl.streams.catalog.tag_account_data import TAG_ACCOUNT_DATA, TagAccountData
from synrepl.streams.catalog.thread_subscriptions import THREAD_SUBSCRIPTIONS, ThreadSubscription
from synrepl.streams.catalog.to_device import TO_DEVICE, ToDevice
from synrepl.streams.catalog.typing import TYPING, Typing
from synrepl.streams.catalog.un_partial_stated_event import UN_PARTIAL_STATED_EVENT, UnPartialStatedEvent
from synrepl.streams.catalog.un_partial_stated_room import UN_PARTIAL_STATED_ROOM, UnPartialStatedRoom
from synrepl.streams.catalog.user_signature import USER_SIGNATURE, UserSignature
from synrepl.streams.stream import Stream

__all__ = [
    "ACCOUNT_DATA",
    "ALL",
    "BACKFILL",
    "CACHES",
    "DEVICE_LISTS",
    "EVENTS",
    "FEDERATION",
    "FILES",
    "GROUPS",
    "PRESENCE",
    "PRESENCE_FEDERATION",
    "PROFILE_UPDATES",
    "PUBLIC_ROOMS",
    "PUSHERS",
    "PUSH_RULES",
    "QUARANTINED_MEDIA",
    "RECEIPTS",
    "STICKY_EVENTS",
    "TAG_ACCOUNT_DATA",
    "THREAD_SUBSCRIPTIONS",
    "TO_DEVICE",
    "TYPING",
    "UN_PARTIAL_STATED_EVENT",
    "UN_PARTIAL_STATED_ROOM",
    "USER_SIGNATURE",
    "AccountData",
    "Backfilled",
    "CacheInvalidation",
    "DeviceList",
    "Event",
    "Federation",
    "File",
    "Group",
    "Presence",
    "PresenceFederation",
    "ProfileUpdate",
    "PublicRoom",
    "PushRules",
    "Pusher",
    "QuarantinedMedia",
    "Receipt",
    "State",
    "StateAll",
    "StickyEvent",
    "TagAccountData",
    "ThreadSubscription",
    "ToDevice",
    "Typing",
    "UnPartialStatedEvent",
    "UnPartialStatedRoom",
    "UserSignature",
]

# In the order in which masters announce their positions.
ALL: tuple[Stream[Any], ...] = (
    EVENTS,
    BACKFILL,
    PRESENCE,
    PRESENCE_FEDERATION,
    TYPING,
    RECEIPTS,
    PUSH_RULES,
    PUSHERS,
    CACHES,
    PUBLIC_ROOMS,
    DEVICE_LISTS,
    TO_DEVICE,
    FEDERATION,
    TAG_ACCOUNT_DATA,
    ACCOUNT_DATA,
    GROUPS,
    USER_SIGNATURE,
    PROFILE_UPDATES,
    STICKY_EVENTS,
    THREAD_SUBSCRIPTIONS,
    UN_PARTIAL_STATED_ROOM,
    UN_PARTIAL_STATED_EVENT,
    QUARANTINED_MEDIA,
    FILES,
)
