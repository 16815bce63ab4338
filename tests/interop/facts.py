"""One fact for every stream, in the newest shape of its rows, and how each release must understand it."""

from typing import Any

ROOM, USER, FRIEND, EVENT = "!room:here", "@user:here", "@friend:there", "$event:here"

Rows = list[list[Any]]

FACTS: dict[str, Rows] = {
    "events": [
        ["state", [ROOM, "m.room.member", USER, EVENT]],
        ["ev", [EVENT, ROOM, "m.room.member", USER, None, "$related", "join", False, False]],
    ],
    "backfill": [["$old:there", ROOM, "m.room.message", None, "$redacted", None]],
    "presence": [
        [USER, "online", 1600000000000, 0, 1600000000001, "Gr\u00fc\u00dfe \u2603 \U0001f600", True],
        [FRIEND, "offline", 0, 0, 0, None, False],
    ],
    "typing": [[ROOM, [USER, FRIEND]]],
    "receipts": [[ROOM, "m.read", USER, EVENT, "$thread", {"ts": 1600000000000}]],
    "push_rules": [[USER]],
    "pushers": [[USER, "app.id", "a key with spaces", True]],
    "caches": [["get_user_by_id", [USER], 1600000000000], ["cs_cache_fake", [ROOM, USER], None]],
    "public_rooms": [[ROOM, True, None, None]],
    "device_lists": [[USER, False, False]],
    "to_device": [[USER]],
    "federation": [["k", {"key": ["typing", ROOM], "edu": {"edu_type": "m.typing", "content": {}}}]],
    "tag_account_data": [[USER, ROOM, '{"m.favourite": {"order": 0.5}}']],
    "account_data": [[USER, ROOM, "m.fully_read"]],
    "groups": [["+group:here", USER, "membership", {"membership": "join"}]],
    "user_signature": [[USER]],
    "presence_federation": [["there", USER]],
}

_NOT_IN = {
    "legacy": {"user_signature", "presence_federation"},
    "current": {"public_rooms", "groups"},
}

# Facts that neither release can know: a stream, and a kind of row, of later ones.
FROM_THE_FUTURE: list[tuple[str, Rows]] = [
    ("thread_subscriptions", [[USER, ROOM, EVENT]]),
    ("events", [["state-all", [ROOM]]]),
]


def streams(release: str) -> list[str]:
    """The streams of FACTS that this release knows."""
    return [stream for stream in FACTS if stream not in _NOT_IN[release]]


def understood(release: str, stream: str) -> list[dict[str, Any]]:
    """Fields that the release must have parsed out of the rows of FACTS; it may hold more, with defaults."""
    legacy = release == "legacy"
    ev: dict[str, Any] = {
        "event_id": EVENT,
        "room_id": ROOM,
        "type": "m.room.member",
        "state_key": USER,
        "redacts": None,
        "relates_to": "$related",
    }
    if not legacy:
        ev |= {"membership": "join", "rejected": False, "outlier": False}
    state = {"room_id": ROOM, "type": "m.room.member", "state_key": USER, "event_id": EVENT}
    table: dict[str, list[dict[str, Any]]] = {
        "events": [{"type": "state", "data": state}, {"type": "ev", "data": ev}],
        "backfill": [
            {
                "event_id": "$old:there",
                "room_id": ROOM,
                "type": "m.room.message",
                "state_key": None,
                "redacts": "$redacted",
                "relates_to": None,
            }
        ],
        "presence": [
            {
                "user_id": USER,
                "state": "online",
                "last_active_ts": 1600000000000,
                "last_user_sync_ts": 1600000000001,
                "status_msg": "Gr\u00fc\u00dfe \u2603 \U0001f600",
                "currently_active": True,
            },
            {"user_id": FRIEND, "state": "offline", "status_msg": None, "currently_active": False},
        ],
        "typing": [{"room_id": ROOM, "user_ids": [USER, FRIEND]}],
        "receipts": [
            {
                "room_id": ROOM,
                "receipt_type": "m.read",
                "user_id": USER,
                "event_id": EVENT,
                "data": {"ts": 1600000000000},
            }
        ],
        "push_rules": [{"user_id": USER}],
        "pushers": [
            {"user_id": USER, "app_id": "app.id", "pushkey": "a key with spaces", "deleted": True},
        ],
        "caches": [
            {"cache_func": "get_user_by_id", "keys": [USER], "invalidation_ts": 1600000000000},
            {"cache_func": "cs_cache_fake", "keys": [ROOM, USER], "invalidation_ts": None},
        ],
        "public_rooms": [{"room_id": ROOM, "visibility": True, "appservice_id": None, "network_id": None}],
        "device_lists": [{"user_id" if legacy else "entity": USER}],
        "to_device": [{"entity": USER}],
        "federation": [{"type": "k"}],
        "tag_account_data": [{"user_id": USER, "room_id": ROOM, "data": '{"m.favourite": {"order": 0.5}}'}],
        "account_data": [{"user_id": USER, "room_id": ROOM, "data_type": "m.fully_read"}],
        "groups": [
            {
                "group_id": "+group:here",
                "user_id": USER,
                "type": "membership",
                "content": {"membership": "join"},
            }
        ],
        "user_signature": [{"user_id": USER}],
        "presence_federation": [{"destination": "there", "user_id": USER}],
    }
    return table[stream]


def holds(whole: Any, part: Any) -> bool:
    """Whether every field of `part` is in `whole` with the same value, all the way down."""
    match part:
        case dict():
            return isinstance(whole, dict) and all(
                name in whole and holds(whole[name], value) for name, value in part.items()
            )
        case list():
            return isinstance(whole, list) and len(whole) == len(part) and all(map(holds, whole, part))
    return bool(whole == part)
