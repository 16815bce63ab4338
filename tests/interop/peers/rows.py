"""Plausible rows for every stream of a release, in the shapes that its own sources have."""


def plausible(release, number):
    """Give (stream, rows) for every stream; rows given together are one fact."""
    legacy = release == "legacy"
    user, friend = "@user%d:here" % number, "@friend:there"
    room, event = "!room%d:here" % number, "$event%d:here" % number
    member = ["state", [room, "m.room.member", user, event]]
    message = ["ev", [event, room, "m.room.member", user, None, None]]
    if not legacy:
        message[1] += ["join", False, False]

    yield "events", [member, message]
    yield "backfill", [["$old%d:there" % number, room, "m.room.message", None, None, "$related"]]
    yield (
        "presence",
        [
            [
                user,
                "online",
                1600000000000 + number,
                0,
                1600000000000,
                "Gr\u00fc\u00dfe \u2603 \U0001f600",
                True,
            ],
            [friend, "offline", 0, 0, 0, None, False],
        ],
    )
    yield "typing", [[room, [user, friend]]]
    yield "receipts", [[room, "m.read", user, event, {"ts": 1600000000000 + number}]]
    yield "push_rules", [[user]]
    yield "pushers", [[user, "app.id", "a key with spaces", False]]
    yield "caches", [["get_user_by_id", [user], 1600000000000], ["cs_cache_fake", [room, user], None]]
    yield "device_lists", [[user, "there"]] if legacy else [[user], ["there"]]
    yield "to_device", [[user]]
    yield "federation", [["k", {"key": ["typing", room], "edu": {"edu_type": "m.typing", "content": {}}}]]
    yield "tag_account_data", [[user, room, '{"m.favourite": {"order": 0.5}}']]
    yield "account_data", [[user, None, "m.direct"] + (['{"a": [1, null]}'] if legacy else [])]
    if legacy:
        yield "public_rooms", [[room, 1, None, None]]
        yield "groups", [["+group:here", user, "membership", {"membership": "join"}]]
    else:
        yield "presence_federation", [["there", user]]
        yield "user_signature", [[user]]
