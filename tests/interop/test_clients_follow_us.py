"""Real Synapse clients follow our daemon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import facts
from tests.interop.harness import Cable, Daemon, Program, asked_for, peer_client, peer_python


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as daemon:
        yield daemon


def follow(release: str, daemon: Daemon, *args: str, server_name: str = "interop.test") -> Program:
    """A client that fetches what it missed from our HTTP port, if its release does such a thing."""
    http = ("--http", f"127.0.0.1:{daemon.http_port}")
    return peer_client(release, daemon.port, *http, *args, server_name=server_name)


def users(client: Program) -> list[str]:
    """The users named by the push_rules rows it was given, in order."""
    return [row["user_id"] for event in client.all("rdata", stream="push_rules") for row in event["rows"]]


def expect_user(client: Program, user: str) -> None:
    client.expect("rdata", stream="push_rules", rows=[{"user_id": user}])


def assert_content(client: Program) -> None:
    """Neither side has complained."""
    assert client.all("send_error") == []
    assert client.all("command", name="ERROR") == []
    assert client.all("trouble") == []


def test_rows_of_every_stream_are_parsed_and_joined(release: str, daemon: Daemon) -> None:
    """A fact comes out of the release's own row classes whole, with the fields that release has."""
    with follow(release, daemon) as client:
        for stream in facts.streams(release):
            client.expect("position", stream=stream)

        tokens = {stream: daemon.append(stream, rows)["tokens"][0] for stream, rows in facts.FACTS.items()}

        for stream in facts.streams(release):
            event = client.expect("rdata", stream=stream, token=tokens[stream])
            assert facts.holds(event["rows"], facts.understood(release, stream)), (stream, event["rows"])
        assert_content(client)
        assert client.all("connection_lost") == []


def test_what_a_release_cannot_know_is_not_sent_to_it(release: str, daemon: Daemon) -> None:
    """Real clients fail on streams and kinds of rows they have never heard of."""
    with follow(release, daemon) as client:
        client.expect("position", stream="events")
        client.expect("position", stream="push_rules")

        for stream, rows in facts.FROM_THE_FUTURE:
            daemon.append(stream, rows)
        daemon.append("push_rules", [["@after:here"]])

        expect_user(client, "@after:here")
        assert_content(client)
        assert client.all("rdata", stream="thread_subscriptions") == []
        assert client.all("connection_lost") == []


def test_a_client_that_knows_nothing_gets_everything(release: str, daemon: Daemon) -> None:
    """Legacy: pushed after REPLICATE <stream> 0. Current: pulled over HTTP after POSITION."""
    daemon.append("push_rules", *([[f"@{number}:here"]] for number in range(250)))
    daemon.append("caches", facts.FACTS["caches"])

    with follow(release, daemon, "--from", "all=0") as client:
        expect_user(client, "@249:here")
        client.expect("position", stream="caches")

        assert users(client) == [f"@{number}:here" for number in range(250)]
        rows = [row for event in client.all("rdata", stream="caches") for row in event["rows"]]
        assert facts.holds(rows, facts.understood(release, "caches"))
        assert_content(client)


def test_commands_are_accepted(release: str, daemon: Daemon) -> None:
    """Whatever a real worker may say, it is not hung up on for it."""
    said = {
        "legacy": [
            "USER_SYNC @user:here start 1600000000000",
            "USER_SYNC @user:here end 1600000000000",
            "FEDERATION_ACK 7",
            "FEDERATION_ACK -1",
            "REMOVE_PUSHER app.id key @user:here",
            'INVALIDATE_CACHE get_user_by_id ["@user:here"]',
            'USER_IP @user:here ["token", "192.0.2.1", "an agent", null, 1600000000000]',
        ],
        "current": [
            "USER_SYNC peer-id @user:here start 1600000000000",
            "USER_SYNC peer-id @user:here end 1600000000000",
            "CLEAR_USER_SYNC peer-id",
            "FEDERATION_ACK sender1 7",
            'USER_IP @user:here ["token","192.0.2.1","an agent",null,1600000000000]',
            "REMOTE_SERVER_UP there",
        ],
    }[release]
    with follow(release, daemon, "--syncing", "@syncing:here") as client:
        client.expect("position", stream="push_rules")

        for line in said:
            client.say(line)
        client.say("PING 1600000000000")
        daemon.append("push_rules", [["@after:here"]])

        expect_user(client, "@after:here")
        client.say("drop")  # the line is read to its end before this is noticed, so an ERROR would be seen
        client.expect("connection_lost")
        assert_content(client)


def test_a_killed_daemon_comes_back_with_everything(release: str, daemon: Daemon) -> None:
    """kill -9 after the answer: what was acknowledged arrives, once and in order."""
    with follow(release, daemon) as client:
        client.expect("position", stream="push_rules")
        daemon.append("push_rules", [["@before:here"]])
        expect_user(client, "@before:here")

        daemon.append("push_rules", [["@acknowledged:here"]])
        daemon.kill()
        client.expect("connection_lost")
        daemon.start()
        daemon.append("push_rules", [["@meanwhile:here"]])
        expect_user(client, "@meanwhile:here")
        daemon.append("push_rules", [["@after:here"]])

        expect_user(client, "@after:here")
        assert users(client) == ["@before:here", "@acknowledged:here", "@meanwhile:here", "@after:here"]
        assert client.all("send_error") == []


@pytest.mark.story
def test_a_cut_connection_loses_nothing(release: str, daemon: Daemon) -> None:
    """What is appended while nobody listens is there on return, and comes once."""
    with follow(release, daemon) as client:
        client.expect("position", stream="push_rules")
        expected = []

        for number in range(3):
            cut = client.mark()
            client.say("drop")
            client.expect("connection_lost", after=cut)
            expected.append(f"@{number}:here")
            daemon.append("push_rules", [[expected[-1]]])
            expect_user(client, expected[-1])

        assert users(client) == expected
        assert_content(client)


def test_the_wrong_server_name_is_refused_by_the_client(release: str, daemon: Daemon) -> None:
    """Our SERVER line carries the name that real clients check."""
    with follow(release, daemon, server_name="other.test") as client:
        client.expect("send_error", text="Wrong remote")

        assert client.all("rdata") == []


def test_a_cut_in_the_middle_of_a_fact_repeats_it_whole(release: str, daemon: Daemon) -> None:
    """The first row had arrived, and half of the second; the client must not join it to anything."""
    http = ("--http", f"127.0.0.1:{daemon.http_port}")
    with Cable(daemon.port) as cable, peer_client(release, cable.port, *http) as client:
        client.expect("position", stream="events")
        cable.cut_after(b'["ev"')

        token = daemon.append("events", facts.FACTS["events"])["tokens"][0]

        client.expect("connection_lost")
        rows = client.expect("rdata", stream="events", token=token)["rows"]
        assert facts.holds(rows, facts.understood(release, "events")), rows
        daemon.append("push_rules", [["@after:here"]])
        expect_user(client, "@after:here")
        assert len(client.all("rdata", stream="events")) == 1
        assert_content(client)


def test_a_client_that_was_away_catches_up_on_every_stream(release: str, daemon: Daemon) -> None:
    """It comes back with the tokens it had, and is given exactly what came meanwhile."""
    had = {stream: daemon.append(stream, rows)["tokens"][0] for stream, rows in facts.FACTS.items()}
    missed = {stream: daemon.append(stream, rows)["tokens"][0] for stream, rows in facts.FACTS.items()}

    known = facts.streams(release)
    starts = [word for stream in known for word in ("--from", f"{stream}={had[stream]}")]
    with follow(release, daemon, *starts) as client:
        for stream in facts.streams(release):
            client.expect("position", stream=stream, token=missed[stream])

        for stream in facts.streams(release):
            events = client.all("rdata", stream=stream)
            assert [event["token"] for event in events] == [missed[stream]], (stream, events)
            assert facts.holds(events[0]["rows"], facts.understood(release, stream)), (stream, events)
        assert_content(client)
        assert client.all("connection_lost") == []


def test_what_a_release_cannot_know_is_not_in_what_it_missed(release: str, daemon: Daemon) -> None:
    """Neither pushed nor pulled."""
    for stream, rows in [*facts.FROM_THE_FUTURE, ("events", facts.FACTS["events"])]:
        last = daemon.append(stream, rows)["tokens"][0]

    with follow(release, daemon, "--from", "all=0") as client:
        client.expect("position", stream="events", token=last)

        assert [event["token"] for event in client.all("rdata", stream="events")] == [last]
        assert_content(client)


def test_a_long_backlog_is_caught_up_on(release: str, daemon: Daemon) -> None:
    """Longer than a real 1.0.0 server can send (10,000 rows), and many pages over HTTP."""
    names = [f"@{number}:here" for number in range(12_000)]
    for first in (0, 6_000):
        daemon.append("push_rules", *([[name]] for name in names[first : first + 6_000]))

    with follow(release, daemon, "--from", "all=0") as client:
        client.expect("position", stream="push_rules", token=len(names))

        assert users(client) == names
        assert_content(client)


def test_a_row_too_long_for_a_line_stops_nobody(release: str, daemon: Daemon) -> None:
    """Current: fetched over HTTP, for which POSITION is the sign. Legacy: there is no way to tell it."""
    with follow(release, daemon) as client:
        client.expect("position", stream="receipts")
        client.expect("position", stream="push_rules")
        row = [facts.ROOM, "m.read", facts.USER, facts.EVENT, None, {"long": "x" * 20_000}]

        token = daemon.append("receipts", [row])["tokens"][0]
        daemon.append("receipts", facts.FACTS["receipts"])
        client.expect("rdata", stream="receipts", token=token + 1)

        if release == "current":
            assert client.expect("rdata", stream="receipts", token=token)["rows"][0]["data"] == row[-1]
        daemon.append("push_rules", [["@after:here"]])
        expect_user(client, "@after:here")
        assert_content(client)
        assert client.all("connection_lost") == []


def test_typing_begins_anew_with_the_daemon(release: str, daemon: Daemon) -> None:
    """It is kept in memory: after a restart it counts from the start, and a client must go back with it."""
    typing = facts.FACTS["typing"]
    with follow(release, daemon) as client:
        client.expect("position", stream="typing", token=0)
        last = daemon.append("typing", typing, typing, typing)["tokens"][-1]
        client.expect("rdata", stream="typing", token=last)

        daemon.kill()
        client.expect("connection_lost")
        back = client.mark()
        daemon.start()
        client.expect("position", after=back, stream="typing")
        token = daemon.append("typing", typing)["tokens"][0]

        assert token < last
        rows = client.expect("rdata", after=back, stream="typing", token=token)["rows"]
        assert facts.holds(rows, facts.understood(release, "typing"))
        assert_content(client)


def both(daemon: Daemon) -> dict[str, Program]:
    """A client of each release at the same port; without both there is nothing to test."""
    releases = [release for release in asked_for() if peer_python(release).exists()]
    if len(releases) < 2:
        pytest.skip("needs two releases; run scripts/interop legacy current")
    return {release: follow(release, daemon) for release in releases}


def common(rows: Any, legacy: Any, current: Any) -> Any:
    """The rows, with the fields alone that both releases have."""
    match rows:
        case dict():
            return {
                name: common(rows[name], legacy[name], current[name]) for name in legacy if name in current
            }
        case list() if isinstance(legacy, list) and legacy and isinstance(legacy[0], dict):
            return [common(*three) for three in zip(rows, legacy, current, strict=True)]
    return rows


@pytest.mark.story
def test_all_releases_at_once(daemon: Daemon) -> None:
    """One port finds out by itself how each connection speaks, and all end up with the same."""
    shared = [stream for stream in facts.streams("legacy") if stream in facts.streams("current")]
    understood = {
        stream: [facts.understood(release, stream) for release in ("legacy", "current")] for stream in shared
    }
    clients = both(daemon)
    try:
        for client in clients.values():
            for stream in shared:
                client.expect("position", stream=stream)

        rounds = [
            {stream: daemon.append(stream, rows)["tokens"][0] for stream, rows in facts.FACTS.items()}
            for _ in range(5)
        ]

        for release, client in clients.items():
            for stream in shared:
                client.expect("rdata", stream=stream, token=rounds[-1][stream])
                events = client.all("rdata", stream=stream)
                assert [event["token"] for event in events] == [tokens[stream] for tokens in rounds]
                for event in events:
                    assert facts.holds(event["rows"], facts.understood(release, stream)), (stream, event)
            assert_content(client)
        for stream in shared:
            seen = [
                [
                    (event["token"], common(event["rows"], *understood[stream]))
                    for event in client.all("rdata", stream=stream)
                ]
                for client in clients.values()
            ]
            assert seen[0] == seen[1], stream
    finally:
        for client in clients.values():
            client.kill()


def test_what_one_client_says_reaches_the_others(daemon: Daemon) -> None:
    """Legacy INVALIDATE_CACHE becomes a row for all; REMOTE_SERVER_UP goes to whose release has it."""
    clients = both(daemon)
    legacy, current = clients["legacy"], clients["current"]
    try:
        with follow("current", daemon, "--name", "other") as other:
            for client in (legacy, current, other):
                client.expect("position", stream="caches")
            invalidated = {"cache_func": "get_user_by_id", "keys": ["@user:here"]}

            legacy.say('INVALIDATE_CACHE get_user_by_id ["@user:here"]')
            current.say("REMOTE_SERVER_UP there")

            for client in (legacy, current, other):
                rows = client.expect("rdata", stream="caches")["rows"]
                assert facts.holds(rows, [invalidated]), rows
            other.expect("remote_server_up", server="there")
            daemon.append("push_rules", [["@after:here"]])
            for client in (legacy, current, other):
                expect_user(client, "@after:here")
                assert_content(client)
            assert current.all("remote_server_up") == []
    finally:
        legacy.kill()
        current.kill()
