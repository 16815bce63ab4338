"""The table of rights, asked by every way in with every kind of key: what is not allowed changes nothing."""

import json
from itertools import product
from typing import Any, Final, NamedTuple

import pytest

from synrepl.base.access import ALL_RIGHTS, Key, Keyring, Right, access_of
from synrepl.base.history import EpochStart
from synrepl.base.rights import Operation, command_operation, operations, route_operation
from synrepl.http_api.route import Route
from synrepl.http_api.routes import ROUTES
from synrepl.replicas.wire.native import Join, Subscribe
from synrepl.replication.serving.command_lines import line_of
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import FORWARDED, FederationAck, declared_commands
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.scope import ALL_STREAMS, NAMED_STREAMS, NO_STREAM, SEEN_STREAMS
from tests.files.site import DATA, PLACE, FilesSiteCase
from tests.http.builders import SiteCase, Talk, receipt
from tests.replicas.http.native_door import Door
from tests.replicas.http.test_replica_routes import CopiesCase

SEEN: Final = "push_rules"
HIDDEN: Final = "receipts"
SECRET: Final = "to_device"
RIGHTS: Final = (*((right,) for right in Right), (Right.READ, Right.REPLICATE), tuple(Right))

Sample = tuple[str, Any]
"""The path with the query, and the body, of a request that names one stream."""


def appends(stream: str) -> list[Any]:
    """A batch with one fact."""
    row = ["@a:hs"] if stream == SEEN else receipt()
    return [{"stream": stream, "facts": [[row]]}]


def requests(stream: str) -> dict[str, Sample]:
    """A request for each route, by the name of the route."""
    claim = {"epoch": 2, "uuid": "z", "address": "- http://other:9093", "history": "", "name": "other"}
    position = {"epoch": 1, "serial": 0, "digest": "0" * 64}
    return {
        "append.append": (f"/v1/streams/{stream}/facts", {"facts": appends(stream)[0]["facts"]}),
        "append.append_batch": ("/v1/facts", {"appends": appends(stream)}),
        "append_stream.serve": ("/v1/appends", appends(stream)[0]),
        "row.page": (f"/v1/streams/{stream}/rows", None),
        "row.allocated": (f"/v1/streams/{stream}/allocated", None),
        "row.updates": (
            f"/_synapse/replication/get_repl_stream_updates/{stream}/t?from_token=0&upto_token=1",
            None,
        ),
        "changelog.read": (f"/v1/changelog?streams={stream}", None),
        "changelog.extent": (f"/v1/extent?streams={stream}", None),
        "changelog.digests": ("/v1/digests?serials=0", None),
        "file.put": (PLACE, DATA),
        "status.recent": (f"/v1/recent?streams={stream}", None),
        "file.get": (PLACE, None),
        "file.get_by_name": ("/v1/files/by-name/a", None),
        "file.list_names": ("/v1/files", None),
        "replica.about": ("/v1/replication", None),
        "native.connect": ("/v1/native", None),
        "native.receive": ("/v1/native/bytes", b"PING 1\n"),
        "command.read": ("/v1/commands", None),
        "command.acknowledge": ("/v1/commands/ack", {"life": "l", "number": 0}),
        "command.syncing": ("/v1/syncing", None),
        "admin.list_leases": ("/v1/leases", None),
        "admin.add_lease": ("/v1/leases", {"name": "lisbon"}),
        "admin.drop_lease": ("/v1/leases/oslo", None),
        "admin.promote": ("/v1/promote", {}),
        "admin.resync": ("/v1/resync", {}),
        "homeserver.invalidate": ("/v1/invalidate", {"name": "get_user_by_id", "key": ["@ada:hs"]}),
        "admin.hand_over": (
            "/v1/handover",
            {"uuid": "z", "address": "- http://other:9093", "seconds": 1.0, "position": position},
        ),
        "admin.claim": ("/v1/claim", claim),
        "key.list_all": ("/v1/keys", None),
        "key.add": ("/v1/keys", {"name": "laptop", "rights": ["administer"], "streams": [SEEN]}),
        "key.revoke": ("/v1/keys/laptop", None),
        "stream.list_all": ("/v1/streams", None),
        "stream.create": ("/v1/streams", {"name": stream, "key": "a", "columns": {"a": "str"}}),
        "refused.list_all": ("/v1/refused", None),
        "refused.replay": ("/v1/refused/replay", {"facts": [{"stream": stream, "writer": "w", "token": 7}]}),
        "refused.remove": ("/v1/refused/remove", {"facts": [{"stream": stream, "writer": "w", "token": 7}]}),
        "status.status": ("/v1/status", None),
        "status.page": ("/status", None),
        "status.root": ("/", None),
        "status.livez": ("/livez", None),
        "status.readyz": ("/readyz", None),
        "status.metrics": ("/metrics", None),
        "openapi.describe": ("/v1/openapi.json", None),
    }


class Peer(NamedTuple):
    """A kind of peer: its key (None: it shows none), proved by a secret or by a certificate."""

    key: Key | None
    is_certified: bool = False

    def may(self, operation: Operation, named: str) -> bool:
        """Whether the table allows it, in the plainest words."""
        if operation.right is None:
            return True
        if self.key is None or operation.right not in self.key.rights:
            return False
        if self.key.streams is None or operation.streams in (NO_STREAM, SEEN_STREAMS):
            return True
        concerned = named if operation.streams == NAMED_STREAMS else operation.streams
        return concerned in self.key.streams


def peers() -> list[Peer]:
    """No key, and a key of each kind, without and with a limit of its streams."""
    found = [Peer(None)]
    for rights, streams, is_certified in product(RIGHTS, (None, frozenset({SEEN})), (False, True)):
        name = f"key{len(found)}"
        secret = None if is_certified else f"secret of {name}"
        key = Key(name=name, secret=secret, rights=frozenset(rights), streams=streams)
        found.append(Peer(key, is_certified))
    return found


class _Certificate:
    """A peer's verified certificate with this common name."""

    def __init__(self, name: str) -> None:
        self.CN = name

    def get_subject(self) -> "_Certificate":
        return self


class TableTests(CopiesCase, FilesSiteCase):
    """A primary with everything behind it, and a key of each kind.

    Connections show the `certificate`.
    """

    certificate: _Certificate | None = None

    def setUp(self) -> None:
        super().setUp()
        self.peers = peers()
        self.registry.keys = Keyring("shared", [peer.key for peer in self.peers if peer.key is not None])
        self.site = self.make_site(
            **self.served(),
            keys=self.registry.keys,
        )
        self.receiver = self.registry.command_receiver
        self.commands = self.publisher.follower_commands.buffer

    def request_of(self, peer: Peer, method: str, path: str, body: Any = None) -> Any:
        """What this peer is answered."""
        talk, headers = self.talk(), []
        if peer.is_certified:
            assert peer.key is not None
            talk.transport.getPeerCertificate = lambda: _Certificate(peer.key.name)  # type: ignore[attr-defined]
        elif peer.key is not None:
            headers = [f"Authorization: Bearer {peer.key.secret}"]
        if body is None or isinstance(body, bytes):
            data = body or b""
        else:
            data = json.dumps(body).encode()
            headers.append("Content-Type: application/json")
        if data:
            headers.append(f"Content-Length: {len(data)}")
            talk.say(self.request(method, path, b"", *headers).replace(b"Content-Length: 0\r\n", b"") + data)
        else:
            talk.say(self.request(method, path, b"", *headers))
        if not talk.heard:
            # A body that is read as it arrives begins in a later turn, and is answered in another one.
            self.clock.advance(0)
            self.clock.advance(0)
        return talk.answer()

    def state(self) -> Any:
        """Everything that a request could change."""
        return (
            self.log.head.serial,
            self.log.positions_by_stream(),
            sorted(str(path) for path in self.directory.rglob("*") if path.is_file()),
            dict(self.log.leases),
            [lease.uuid for lease in self.registry.leases.all()],
            (self.commands.head, self.commands.trimmed_upto, len(self.receiver._origins)),
            sorted(self.declared.declared),
            (self.roles.role, self.log.head.epoch),
            sorted(self.publisher.follower_commands.syncing.users()),
        )

    def test_every_route_is_asked_by_every_kind_of_key(self) -> None:
        """A route without a request here fails."""
        tried = 0
        for route, peer, stream in product(ROUTES, self.peers, (SEEN, HIDDEN)):
            path, body = requests(stream)[route.name]
            operation = route_operation(route)
            if stream == HIDDEN and operation.streams != NAMED_STREAMS:
                continue
            with self.subTest(route.name, peer=peer, stream=stream):
                before = self.state()

                answer = self.request_of(peer, route.method, path, body)

                if peer.may(operation, stream):
                    self.assertNotIn(answer.status, (401, 403), answer.body)
                    self.assertNotIn(b'"error":"no_rights"', answer.body)
                else:
                    self.check_refused(route, peer, answer)
                    self.assertEqual(before, self.state())
                tried += 1
        self.assertGreater(tried, len(ROUTES) * len(self.peers))

    def check_refused(self, route: Route, peer: Peer, answer: Any) -> None:
        """With the right status and code."""
        is_synapse = route.path.startswith("/_synapse")
        if peer.key is None:
            self.assertEqual(500 if is_synapse else 401, answer.status, answer.body)
        else:
            # The lines of a stream are refused one by one.
            is_begun = route.streams_body and Right.WRITE in peer.key.rights
            self.assertEqual(200 if is_begun else 403, answer.status, answer.body)
            self.assertIn(b"no_rights" if not is_synapse else b"errcode", answer.body)
            self.assertIn(peer.key.name.encode(), answer.body)

    def test_a_parameter_can_take_a_right_of_its_own(self) -> None:
        """Receipts and commands are for replicas."""
        for parameter, peer in product(("receipts=true", "commands=o&follow=true"), self.peers):
            if peer.key is None or Right.READ not in peer.key.rights:
                continue
            with self.subTest(parameter, peer=peer):
                path = f"/v1/changelog?streams={SEEN}&{parameter}"
                status = self.request_of(peer, "GET", path).status

                self.assertEqual(200 if Right.REPLICATE in peer.key.rights else 403, status)

    def door_of(self, peer: Peer, uuid: str = "u") -> Door:
        """A native connection over HTTP of this peer, after the handshake if that succeeds."""
        key = peer.key
        assert key is not None
        self.certificate = _Certificate(key.name) if peer.is_certified else None
        door = Door(self, *([] if peer.is_certified else [f"Authorization: Bearer {key.secret}"]))
        self.addCleanup(door.talk.leave)
        door.replica.greet(door, uuid=uuid, name=key.name, secret=key.secret)
        return door

    def talk(self, peer: str = "127.0.0.1") -> Talk:
        """A new connection, with this certificate."""
        talk, certificate = super().talk(peer), self.certificate
        if certificate is not None:
            talk.transport.getPeerCertificate = lambda: certificate  # type: ignore[attr-defined]
        return talk

    def test_a_replica_of_every_kind_of_key_joins_and_follows(self) -> None:
        """What is not allowed makes no lease."""
        combined = product(self.peers, (SEEN, HIDDEN), (Join, Subscribe))
        for number, (peer, stream, command) in enumerate(combined):
            if peer.key is None or Right.REPLICATE not in peer.key.rights:
                continue
            with self.subTest(command.__name__, peer=peer, stream=stream):
                door, wanted = self.door_of(peer, f"u{number}"), Filter.of(streams=(stream,))
                if command is Join:
                    door.replica.tell("JOIN", Join(filter=wanted))
                else:
                    position = self.log.position
                    asked = Subscribe(history=self.log.history, position=position, filter=wanted)
                    door.replica.tell("SUBSCRIBE", asked)
                door.pass_(0.1)
                lease = self.registry.leases[f"u{number}"]
                door.talk.leave()

                if peer.may(command_operation(command), stream):
                    self.assertEqual([], door.replica.lines("REFUSED"))
                    self.assertIsNotNone(lease)
                else:
                    self.assertEqual("no_rights", door.replica.refusal()["code"])
                    self.assertIsNone(lease)

    def test_every_forwarded_command_takes_what_it_takes_of_a_follower(self) -> None:
        """What is not allowed is dropped, counted, and changes nothing; the replica goes on."""
        self.wait(self.log.append("federation", "master", [b'[["k",{}]]']))
        for number, (command, peer) in enumerate(product(FORWARDED, self.peers), 1):
            if peer.key is None or Right.REPLICATE not in peer.key.rights:
                continue
            example = next(iter(example_of(command)))
            with self.subTest(command.NAME, peer=peer):
                door = self.door_of(peer)
                before, dropped = self.state(), self.dropped(command)

                door.replica.say(f"UP o{number} 1 {line_of(example).decode()}")
                door.pass_(0.1)
                door.talk.leave()

                self.assertEqual([b"o%d 1 1" % number], door.replica.lines("TAKEN"))
                is_allowed = peer.may(command_operation(command), "")
                if not is_allowed:
                    self.assertEqual(dropped + 1, self.dropped(command))
                    self.assertEqual(before[:5], self.state()[:5])
                    self.assertEqual(before[5][0], self.commands.head)
                    self.assertEqual(before[6:], self.state()[6:])
                elif command is not FederationAck:  # one beyond the stream is no ack
                    self.assertEqual(dropped, self.dropped(command))

    def dropped(self, command: type[Command]) -> float:
        """How many of these commands were dropped."""
        count: float = self.metrics.commands_dropped.labels(command.NAME).value
        return count


def example_of(command: type[Command]) -> list[Command]:
    """The examples of a command, parsed."""
    return [
        codec_of(dialect, ours=SERVER, theirs=CLIENT).parse(line.encode())
        for dialect, line in reversed(command.EXAMPLES.items())
    ]


class SightTests(CopiesCase):
    """What a key limited to one stream is told."""

    limited = Key(name="lim", secret="of lim", rights=ALL_RIGHTS, streams=frozenset({SEEN}))

    def setUp(self) -> None:
        super().setUp()
        self.registry.keys = Keyring("shared", [self.limited])
        self.site = self.make_site(
            **self.served(),
            keys=self.registry.keys,
        )
        for stream, writer, key in ((SEEN, "openwriter", "open"), (SECRET, "hiddenwriter", "h")):
            fact = b'[["@a:hs"]]'
            self.wait(self.log.append(stream, writer, [fact], key=f"{key}-of-{writer}", owner="ada"))
        self.wait(self.log.epochs.begin_next("lost", stream=SECRET, token=0))
        self.registry.leases.make("lim-uuid", "lim", registered=True, serial=0, key="lim")
        self.registry.leases.make("other-uuid", "hiddenreader", registered=True, serial=0)

    def told(self, method: str, path: str, body: Any = None, secret: str = "of lim") -> str:
        """What it is answered."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = self.ask(method, path, data, f"Authorization: Bearer {secret}")
        self.assertEqual(200, answer.status, answer.body)
        return answer.body.decode()

    def ways(self) -> list[tuple[str, str, Any]]:
        """All answers that are reduced to what the peer may see."""
        return [
            ("GET", "/v1/changelog?receipts=true&epoch_starts=true", None),
            ("GET", "/v1/extent", None),
            ("GET", "/v1/status", None),
            ("GET", "/v1/leases", None),
            ("GET", "/v1/replication", None),
            ("GET", "/status", None),
        ]

    def heard(self, secret: str = "of lim", name: str = "lim", streams: frozenset[str] | None = None) -> str:
        """All that a replica is sent that joins, and then follows these streams."""
        door = Door(self, f"Authorization: Bearer {secret}")
        self.addCleanup(door.talk.leave)
        welcome = door.replica.greet(door, uuid=f"{name}-uuid", name=name, secret=secret)
        assert welcome is not None
        wanted = Filter.of(streams=streams)
        door.replica.tell("JOIN", Join(filter=wanted))
        door.pass_(0.1)
        door.replica.subscribe(door, welcome, self.log.position, filter=wanted)
        self.assertEqual([], door.replica.lines("REFUSED"))
        return door.opened.body.decode("latin-1")

    def test_no_answer_names_what_the_key_may_not_see(self) -> None:
        """Neither streams and writers nor readers and idempotency keys."""
        heard = self.heard(streams=frozenset({SEEN}))
        answers = {path: self.told(method, path, body) for method, path, body in self.ways()}
        for path, told in (answers | {"natively": heard}).items():
            with self.subTest(path):
                for name in ("hiddenwriter", "hiddenreader", "other-uuid", "h-of-", f'"{SECRET}"'):
                    self.assertNotIn(name, told)

    def test_a_key_without_a_limit_is_told_everything(self) -> None:
        """As before; so the test above looks for names that are there."""
        told = "".join(
            self.told(method, path, None, "shared") for method, path, body in self.ways() if not body
        )
        told += self.heard("shared", "x")

        for name in ("hiddenwriter", "hiddenreader", "other-uuid", "h-of-", f'"{SECRET}"'):
            self.assertIn(name, told)

    def test_what_the_key_may_see_is_reported(self) -> None:
        """Its own writers, receipts and leases."""
        joined = self.heard(streams=frozenset({SEEN}))
        followed = self.told("GET", "/v1/changelog?receipts=true")

        self.assertIn("openwriter", joined)
        self.assertIn("open-of-openwriter", joined)
        self.assertIn("open-of-openwriter", followed)
        self.assertIn("lim-uuid", self.told("GET", "/v1/leases"))

    def test_commands_for_the_homeserver_are_those_of_seen_streams(self) -> None:
        """And a key that sees some of them cannot acknowledge them all."""
        said = [(1, b"REMOVE_PUSHER app key @a:hs"), (2, b"USER_SYNC w @a:hs PHONE start 1")]
        self.registry.command_receiver.receive("o", said)

        self.assertIn("REMOVE_PUSHER", self.told("GET", "/v1/commands", None, "shared"))
        self.assertEqual(1, len(self.told("GET", "/v1/commands").splitlines()))
        refused = self.ask(
            "POST", "/v1/commands/ack", b'{"life":"l","number":0}', "Authorization: Bearer of lim"
        )
        self.assertEqual(403, refused.status)

    def test_the_origin_of_forwarded_commands_belongs_to_a_key(self) -> None:
        """Or a peer could use up the numbers of another one, whose commands would be lost."""
        receive = self.registry.command_receiver.receive
        receive("paris-1", [(10**9, b"PING")], access=access_of(self.limited))

        received = receive("paris-1", [(7, b"REMOTE_SERVER_UP example.org")])

        self.assertEqual((7, 7), received)


class AcksTests(SiteCase):
    """Acks of the federation stream."""

    def test_an_ack_beyond_the_stream_or_below_the_last_one_is_none(self) -> None:
        """It is counted, and neither trims the stream nor is passed on."""
        said, connection = self.publisher.follower_commands, object()
        for _ in range(5):
            self.wait(self.log.append("federation", "master", [b'[["k",{}]]']))
        for token, left in ((6, 5), (2, 3), (1, 3), (999, 3), (4, 1), (5, 0)):
            said.received(connection, FederationAck(instance="s", token=token))

            self.assertEqual(left, len(self.log.ephemeral.after("federation", 0)), token)
        self.assertEqual(3, self.metrics.commands_dropped.labels("FEDERATION_ACK").value)
        self.assertEqual(3, said.buffer.head)

    def test_acks_of_a_stream_that_has_restarted_are_forgotten(self) -> None:
        """Its tokens mean other facts: a sender that has received none of them holds them back."""
        said, connection = self.publisher.follower_commands, object()
        for _ in range(5):
            self.wait(self.log.append("federation", "master", [b'[["k",{}]]']))
        said.received(connection, FederationAck(instance="s", token=5))
        self.log.reset_writer("federation", "master")
        for _ in range(6):
            self.wait(self.log.append("federation", "master", [b'[["k",{}]]']))

        said.received(connection, FederationAck(instance="s", token=1))

        self.assertEqual(5, len(self.log.ephemeral.after("federation", 0)))


@pytest.mark.parametrize("command", [one for one in declared_commands() if one.SENT_BY & CLIENT])
def test_every_command_of_a_client_declares_what_it_takes(command: type[Command]) -> None:
    """Empty is for commands that no client sends."""
    assert command.RIGHT != ""
    assert command.RIGHT is None or command.RIGHT in list(Right)


def test_the_table_has_every_operation_once() -> None:
    """Its words for streams are streams of the catalog, or words of the table."""
    from synrepl.streams.table import StreamTable

    table = list(operations())
    names = [operation.name for operation in table]
    known = {one.name for one in StreamTable.default()}

    assert len(names) == len(set(names))
    for operation in table:
        assert operation.streams in {NO_STREAM, NAMED_STREAMS, SEEN_STREAMS, ALL_STREAMS} | known, operation


def test_a_start_of_an_epoch_hides_the_stream_whose_facts_it_discards() -> None:
    """The rest is for everybody: positions are compared with it."""
    start = EpochStart(2, 5, "d", 1, "lost", "receipts", 3)

    assert start == start.seen_by(None) == start.seen_by({"receipts"})
    assert EpochStart(2, 5, "d", 1, "lost") == start.seen_by({"push_rules"})
