"""Our follower, as `synrepl tail`, follows real Synapse servers."""

from pathlib import Path
from typing import Any

import pytest

from tests.interop.facts import holds
from tests.interop.harness import Cable, Event, PeerServer, Program, tail, worker
from tests.servers.ports import free_port

# Their rows have one shape in every release, so they come out as they went in.
SAME_EVERYWHERE = ("backfill", "caches", "presence", "push_rules", "pushers", "to_device", "typing")

# A value that must still be there, wherever the newest shape of the stream has put it.
TELLTALE = {
    "account_data": "m.direct",
    "device_lists": "@user0:here",
    "events": "$event0:here",
    "federation": "m.typing",
    "groups": "+group:here",
    "presence_federation": "there",
    "public_rooms": "!room0:here",
    "receipts": "$event0:here",
    "tag_account_data": "!room0:here",
    "user_signature": "@user0:here",
}

SENT: dict[str, list[Any]] = {
    "backfill": [["$old0:there", "!room0:here", "m.room.message", None, None, "$related"]],
    "caches": [
        ["get_user_by_id", ["@user0:here"], 1600000000000],
        ["cs_cache_fake", ["!room0:here", "@user0:here"], None],
    ],
    "presence": [
        ["@user0:here", "online", 1600000000000, 0, 1600000000000, "Gr\u00fc\u00dfe \u2603 \U0001f600", True],
        ["@friend:there", "offline", 0, 0, 0, None, False],
    ],
    "push_rules": [["@user0:here"]],
    "pushers": [["@user0:here", "app.id", "a key with spaces", False]],
    "to_device": [["@user0:here"]],
    "typing": [["!room0:here", ["@user0:here", "@friend:there"]]],
}


def leaves(value: Any) -> set[Any]:
    """Every scalar inside a JSON value."""
    if isinstance(value, dict):
        return set().union(*map(leaves, value.values()))
    if isinstance(value, list):
        return set().union(*map(leaves, value))
    return {value}


def follow(server: PeerServer, *args: str, port: int | None = None) -> Program:
    """Our follower of this server, from the very beginning."""
    http = ("--http", f"http://127.0.0.1:{server.http_port}") if server.http_port else ()
    return tail(port or server.port, "--dialect", server.release, "--from", "earliest", *http, *args)


def expect_user(follower: Program, user: str, after: int = 0) -> Event:
    return follower.expect("rdata", after=after, stream="push_rules", rows=[[user]])


def users(follower: Program) -> list[str]:
    return [row[0] for event in follower.all("rdata", stream="push_rules") for row in event["rows"]]


def assert_understood(
    follower: Program, server: PeerServer, token: int, after: int = 0, *, lost: bool = False
) -> None:
    """One round of demo rows came out, whole facts, nothing lost in them.

    With `lost`, it tells of former facts that the server lacks now, and of nothing else.
    """
    for stream in server.streams:
        rows = follower.expect("rdata", after=after, stream=stream, token=token)["rows"]
        if stream in SAME_EVERYWHERE:
            assert rows == SENT[stream], stream
        else:
            assert TELLTALE[stream] in leaves(rows), (stream, rows)
    assert len(follower.expect("rdata", after=after, stream="events", token=token)["rows"]) == 2
    for stream in server.streams:
        assert [event["token"] for event in follower.all("rdata", after, stream=stream)] == [token], stream
    told = [event["message"] for event in follower.all("error")]
    assert all(lost and "are lost: the server's log lacks them" in one for one in told), told


@pytest.mark.story
def test_rows_of_every_stream_live(release: str) -> None:
    """Rows of one token travel as a batch and come out as one fact."""
    with PeerServer(release, token=10) as server, follow(server) as follower:
        for stream in server.streams:
            follower.expect("position", stream=stream)

        server.say({"demo": 1})

        assert_understood(follower, server, token=11)


def test_rows_of_every_stream_from_before(release: str) -> None:
    """A legacy server does not batch its backlog; facts come out whole nevertheless."""
    with PeerServer(release, token=10) as server:
        server.say({"demo": 1})
        with follow(server) as follower:
            assert_understood(follower, server, token=11)


@pytest.mark.story
def test_a_cut_connection_loses_nothing(release: str) -> None:
    """Cut by the server, three times, with a row behind each cut."""
    with PeerServer(release) as server, follow(server) as follower:
        follower.expect("position", stream="push_rules")
        expected = []

        for number in range(3):
            cut = follower.mark()
            server.say({"drop": True})
            follower.expect("disconnected", after=cut)
            expected.append(f"@{number}:here")
            server.say({"stream": "push_rules", "rows": [[expected[-1]]]})
            expect_user(follower, expected[-1], after=cut)

        assert users(follower) == expected


def test_a_cut_in_the_middle_of_a_fact_repeats_it_whole(release: str) -> None:
    """Its first row had come, and half of its second: they are forgotten, and it comes again, whole."""
    with (
        PeerServer(release, token=10) as server,
        Cable(server.port) as cable,
        follow(server, port=cable.port) as follower,
    ):
        for stream in server.streams:
            follower.expect("position", stream=stream)
        cable.cut_after(b'["ev"')

        server.say({"demo": 1})

        follower.expect("disconnected")
        assert_understood(follower, server, token=11)


def test_tokens_that_go_down_lose_no_row(release: str) -> None:
    """Real masters send backfilled events in descending order; each is news."""
    down = [(f"$old{token}:there", token) for token in (13, 12, 11)]
    with PeerServer(release, token=10) as server, follow(server) as follower:
        follower.expect("position", stream="backfill")

        row = ["!room:here", "m.room.message", None, None, None]
        server.say({"facts": [["backfill", [[event, *row]], token] for event, token in down]})

        found = follower.expect_many("rdata", 3, stream="backfill")
        assert [(event["rows"][0][0], event["token"]) for event in found] == down
        assert follower.all("error") == []


def test_an_error_is_survived(release: str) -> None:
    """The server complains and hangs up; the follower says so and comes back."""
    with PeerServer(release) as server, follow(server) as follower:
        follower.expect("position", stream="push_rules")
        before = follower.mark()

        server.say({"error": "go away"})
        follower.expect("disconnected", after=before)
        follower.expect("connected", after=before)
        server.say({"stream": "push_rules", "rows": [["@after:here"]]})

        expect_user(follower, "@after:here", after=before)


def test_a_restarted_server_whose_tokens_went_back_is_followed(release: str) -> None:
    """Typing lives in memory: after a restart it counts from the start, and its rows are news still."""
    port, http_port = free_port(), free_port()
    with PeerServer(release, port=port, http_port=http_port, token=50) as server, follow(server) as follower:
        follower.expect("position", stream="typing", token=50)
        server.say({"stream": "typing", "rows": [["!before:here", []]]})
        follower.expect("rdata", stream="typing", token=51)

        server.kill()
        follower.expect("disconnected")
        back = follower.mark()
        with PeerServer(release, port=port, http_port=http_port, token=1) as restarted:
            follower.expect("connected", after=back)
            follower.expect("position", after=back, stream="typing", token=1)
            restarted.say({"stream": "typing", "rows": [["!after:here", []]]})

            assert follower.expect("rdata", after=back, stream="typing")["rows"] == [["!after:here", []]]
            assert follower.expect("rdata", after=back, stream="typing")["token"] == 2


def test_a_server_that_began_anew_is_followed_in_every_stream(release: str) -> None:
    """All its tokens went back, and it says the same rows at the same tokens: they are news once more."""
    port, http_port = free_port(), free_port()
    with PeerServer(release, port=port, http_port=http_port, token=10) as server, follow(server) as follower:
        for stream in server.streams:
            follower.expect("position", stream=stream, token=10)
        server.say({"demo": 1})
        assert_understood(follower, server, token=11)

        server.kill()
        follower.expect("disconnected")
        back = follower.mark()
        with PeerServer(release, port=port, http_port=http_port, token=10) as restarted:
            for stream in restarted.streams:
                follower.expect("position", after=back, stream=stream, token=10)
            restarted.say({"demo": 1})

            assert_understood(follower, restarted, token=11, after=back, lost=True)


def test_a_stopped_follower_goes_on_exactly(release: str, tmp_path: Path) -> None:
    """With --state, what was printed before the stop is not printed again, and nothing is left out."""
    state = ("--state", str(tmp_path / "state"))
    with PeerServer(release) as server:
        with follow(server, *state) as first:
            first.expect("position", stream="push_rules")
            server.say({"stream": "push_rules", "rows": [["@one:here"]]})
            expect_user(first, "@one:here")
            server.say({"stream": "push_rules", "rows": [["@two:here"]]})
            expect_user(first, "@two:here")
            first.stop()

        server.say({"stream": "push_rules", "rows": [["@three:here"]]})

        with follow(server, *state) as second:
            expect_user(second, "@three:here")
            assert users(second) == ["@three:here"]


def test_commands_of_a_worker_are_taken(release: str) -> None:
    """Whatever a worker made with our library may say, a real server understands."""
    said = {
        "legacy": {
            "USER_SYNC @user:here start 1600000000000": {"user_id": "@user:here", "is_syncing": True},
            "USER_SYNC @user:here end 1600000000000": {"user_id": "@user:here", "is_syncing": False},
            "FEDERATION_ACK 7": {"token": 7},
            "REMOVE_PUSHER app.id key @user:here": {"app_id": "app.id", "push_key": "key"},
            'INVALIDATE_CACHE get_user_by_id ["@user:here"]': {"keys": ["@user:here"]},
            'USER_IP @user:here ["token","192.0.2.1","an agent",null,1600000000000]': {"ip": "192.0.2.1"},
        },
        "current": {
            "USER_SYNC id @user:here start 1600000000000": {"instance_id": "id", "is_syncing": True},
            "USER_SYNC id @user:here end 1600000000000": {"instance_id": "id", "is_syncing": False},
            "CLEAR_USER_SYNC id": {"instance_id": "id"},
            "FEDERATION_ACK sender1 7": {"instance_name": "sender1", "token": 7},
            'USER_IP @user:here ["token","192.0.2.1","an agent",null,1600000000000]': {"ip": "192.0.2.1"},
            "REMOTE_SERVER_UP there": {"data": "there"},
        },
    }[release]
    with PeerServer(release) as server, worker(server.port, release) as ours:
        ours.expect("position", stream="push_rules")

        before = server.mark()
        for line in said:
            ours.say(line)

        last = list(said)[-1].partition(" ")[0]
        server.expect("command", after=before, name=last)
        # The server may report what the connection began with (NAME, REPLICATE) late.
        names = {line.partition(" ")[0] for line in said}
        heard = [command for command in server.all("command", before) if command["name"] in names]
        for (line, understood), command in zip(said.items(), heard, strict=True):
            assert command["name"] == line.partition(" ")[0]
            assert holds(command["args"], understood), (line, command)
        server.expect("call", method="federation_ack")
        server.say({"stream": "push_rules", "rows": [["@after:here"]]})
        ours.expect("rdata", stream="push_rules", rows=["@after:here"])
        assert server.all("send_error") == []
        assert ours.all("error") == ours.all("disconnected") == []


@pytest.mark.only_release("current")  # it came with 1.9.0
def test_remote_server_up_of_a_server_reaches_a_worker(release: str) -> None:
    """A server passes on what another of its workers has said."""
    with PeerServer(release) as server, worker(server.port, release) as ours:
        ours.expect("position", stream="push_rules")

        server.say({"line": "REMOTE_SERVER_UP there"})

        ours.expect("command", name="REMOTE_SERVER_UP", server="there")


def test_the_wrong_server_name_is_refused(release: str) -> None:
    """We check the name, as real clients do, and tell the server and our own reader why we hang up."""
    with (
        PeerServer(release, server_name="other.test") as server,
        tail(server.port, "--dialect", release) as follower,
    ):
        text = server.expect("command", name="ERROR")["args"]["data"]
        reason = follower.expect("disconnected")["reason"]

        for told in (text, reason):
            assert "other.test" in told
            assert "interop.test" in told
        assert follower.process.wait(30) == 1, "tail ends: trying again cannot help"
        assert follower.all("rdata") == follower.all("position") == []
