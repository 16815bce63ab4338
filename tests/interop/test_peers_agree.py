"""The peers themselves: a release's client against its own server, so that a failure elsewhere is ours."""

import pytest

from tests.interop.harness import PeerServer, peer_client


def test_rows_of_every_stream_arrive_parsed_and_joined(release: str) -> None:
    """What the other tests expect of real peers, real peers do with each other."""
    with (
        PeerServer(release, token=10) as server,
        peer_client(release, server.port, "--from", "all=10") as client,
    ):
        client.expect_many("position", len(server.streams))

        server.say({"demo": 1})
        for stream in server.streams:
            client.expect("rdata", stream=stream, token=11)

        assert {event["stream"] for event in client.all("rdata")} == server.streams
        assert [len(event["rows"]) for event in client.all("rdata", stream="events")] == [2]
        assert (
            client.all("rdata", stream="presence")[0]["rows"][0]["status_msg"]
            == "Gr\u00fc\u00dfe \u2603 \U0001f600"
        )


def test_commands_of_the_client_reach_the_server(release: str) -> None:
    """Each release is asked to say what it can say."""
    said = {
        "legacy": [
            "FEDERATION_ACK 7",
            "REMOVE_PUSHER app key @user:here",
            'INVALIDATE_CACHE get_user_by_id ["@user:here"]',
        ],
        "current": ["FEDERATION_ACK sender1 7", "CLEAR_USER_SYNC peer-id", "REMOTE_SERVER_UP there"],
    }[release]
    with (
        PeerServer(release) as server,
        peer_client(release, server.port, "--syncing", "@user:here") as client,
    ):
        client.expect("connected")
        server.expect("command", name="USER_SYNC")

        for line in said:
            client.say(line)
            server.expect("command", name=line.partition(" ")[0])

        server.expect("call", method="federation_ack")
        assert server.all("send_error") == []


def test_a_row_sent_while_the_line_was_cut_is_noticed(release: str) -> None:
    """A legacy server sends it again; a current client learns from a POSITION that it must fetch it."""
    with PeerServer(release) as server, peer_client(release, server.port, "--from", "all=1") as client:
        client.expect_many("position", len(server.streams))
        cut = client.mark()

        client.say("drop")
        server.expect("connection_lost")
        server.say({"stream": "push_rules", "rows": [["@while:away"]]})

        if release == "legacy":
            assert client.expect("rdata", after=cut, stream="push_rules")["rows"] == [
                {"user_id": "@while:away"}
            ]
        else:
            client.expect("missing", after=cut, stream="push_rules", from_token=1, upto=2)


@pytest.mark.only_release("current")  # a legacy client asks over TCP
def test_a_current_client_fetches_what_it_missed(release: str) -> None:
    """The release's own puller against the stand-in for its HTTP side, which our tests rely on."""
    with PeerServer(release, token=10) as server:
        server.say({"demo": 2})
        with peer_client(
            release, server.port, "--http", f"127.0.0.1:{server.http_port}", "--from", "all=10"
        ) as client:
            for stream in server.streams:
                assert client.expect("rdata", stream=stream, token=12)["rows"]
            assert [len(event["rows"]) for event in client.all("rdata", stream="events")] == [2, 2]
            assert client.all("trouble") == []


def test_the_wrong_server_name_is_refused(release: str) -> None:
    """The check that our own SERVER line must pass."""
    with PeerServer(release) as server, peer_client(release, server.port, server_name="other.test") as client:
        client.expect("send_error", text="Wrong remote")
        server.expect("command", name="ERROR")
