"""The native door of a site over HTTP: who may use it, and what it makes of the bytes that are posted."""

from typing import Any, Final

import pytest
from twisted.logger import capturedLogs, formatEvent

from synrepl.base.access import ALL_RIGHTS, Key, Keyring, Right
from synrepl.replicas.http import native_handlers as native_routes
from synrepl.replicas.routes import CONNECTION, NATIVE_BYTES
from synrepl.replicas.wire.native import Join
from synrepl.transports.connection import STALLED_SECONDS
from tests.http.builders import receipt
from tests.replicas.http.native_door import Door
from tests.replicas.http.test_replica_routes import CopiesCase

SECRET: Final = "of the daemons"
BEARER: Final = f"Authorization: Bearer {SECRET}"
LIMITED: Final = Key(name="paris", secret="of paris", rights=frozenset({Right.READ, Right.REPLICATE}))
READER: Final = Key(name="reader", secret="of reader", rights=frozenset({Right.READ}))


class DoorCase(CopiesCase):
    """A primary, and replicas at its door."""

    def door(self, *headers: str) -> Door:
        """An open connection."""
        door = Door(self, *headers)
        self.addCleanup(door.talk.leave)
        return door

    def use(self, *keys: Key) -> None:
        """Take the shared secret and these keys from now on."""
        self.registry.keys = Keyring(SECRET, keys)
        self.site = self.make_site(**self.served(), keys=self.registry.keys)

    def native_transports(self) -> dict[str, Any]:
        """The connections that the site knows, by id."""
        known: dict[str, Any] = self.site.resource.context.rooms["replicas"].native_transports
        return known


class ConversationTests(DoorCase):
    """The conversation is that of a native listener."""

    def test_a_replica_joins_and_follows(self) -> None:
        """It is on the list as one that follows natively."""
        self.receipts(3)
        door = self.door()
        welcome = door.replica.greet(door)
        door.replica.tell("JOIN", Join())
        door.pass_(0.1)
        assert welcome is not None
        door.replica.subscribe(door, welcome, self.log.position)
        self.receipts(1)
        door.pass_(0.1)

        self.assertEqual(self.log.history, welcome.history)
        self.assertEqual(4, sum(block.lines for block in door.replica.blocks("facts")))
        self.assertEqual(1, len(door.replica.lines("JOINED")))
        (listed,) = self.registry.status()
        self.assertEqual(("raw", "live"), (listed["name"], listed["relay"]))

    def test_the_answer_says_that_it_is_not_to_be_kept_or_held_back(self) -> None:
        """Proxies would wait for its end, which never comes."""
        opened = self.door().opened

        self.assertEqual(200, opened.status)
        self.assertEqual("application/octet-stream", opened.headers["content-type"])
        self.assertEqual("no-store, no-transform", opened.headers["cache-control"])
        self.assertEqual("no", opened.headers["x-accel-buffering"])
        self.assertRegex(opened.headers[CONNECTION.lower()], "^[0-9a-f]{64}$")

    def test_followers_are_not_served(self) -> None:
        """At a native port they have all rights."""
        for line in ("REPLICATE", "REPLICATE ALL", "USER_SYNC w @a:hs start 1", "FEDERATION_ACK s 1"):
            door = self.door()
            door.replica.say("NAME worker", line)
            door.pass_(0.1)

            self.assertEqual(1, len(door.errors()), line)
            self.assertTrue(door.is_ended, line)
        self.assertEqual([], self.publisher.followers)
        self.assertEqual([], self.publisher.follower_commands.syncing.current())

    def test_who_does_not_say_who_it_is_is_let_go(self) -> None:
        """As at a native port."""
        door = self.door()
        for _ in range(7):
            door.replica.say("PING 1")
            door.pass_(5)

        self.assertIn("no valid HELLO came within 30 seconds", door.errors()[0])
        self.assertTrue(door.is_ended)
        self.assertEqual({}, self.native_transports())

    def test_a_refused_handshake_frees_its_descriptor(self) -> None:
        """Not only when the connection of HTTP, which could serve another request, is over."""
        door = self.door()
        door.replica.say("NAME worker", "REPLICATE")
        door.pass_(0.1)

        self.assertEqual(1, len(door.errors()))
        self.assertEqual("close", door.opened.headers["connection"])
        self.assertTrue(door.talk.transport.disconnecting)
        self.assertFalse(door.talk.transport.is_aborted)
        # Nor if the peer does not read its end.
        self.clock.advance(30)
        self.assertTrue(door.talk.transport.is_aborted)

    def test_one_that_is_silent_is_let_go(self) -> None:
        """Its proxy may keep the connection."""
        door = self.door()
        door.subscribe()
        door.replica.say("PING 1")
        door.pass_(30)

        self.assertEqual(["ping timeout"], door.errors())
        self.assertTrue(door.opened.is_whole)
        self.assertEqual([], self.registry.connected)

    def test_a_replica_that_leaves_is_forgotten(self) -> None:
        """At once: it may come again."""
        door = self.door()
        door.subscribe()
        name = door.name
        door.talk.leave()

        self.assertEqual(({}, []), (self.native_transports(), self.registry.connected))
        self.assertEqual("no_connection", door.post(b"PING 1\n", name=name).json()["error"])

    def test_a_daemon_that_lets_its_replicas_go_ends_the_answers(self) -> None:
        """After it said why."""
        door = self.door()
        door.subscribe()
        self.registry.close("server shutting down")
        door.pass_(0.1)

        self.assertEqual(["server shutting down"], door.errors())
        self.assertTrue(door.opened.is_whole)
        self.assertEqual("no_connection", door.post(b"PING 1\n").json()["error"])

    def test_a_fault_of_ours_ends_the_connection(self) -> None:
        """Its bytes would be out of step."""
        door = self.door()

        def fail(commands: object) -> None:
            raise ZeroDivisionError

        self.patch(self.registry.connected[0], "received", fail)
        door.replica.say("PING 1")

        self.assertEqual(500, door.answers[0].status)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertTrue(door.talk.transport.is_aborted)


class BytesTests(DoorCase):
    """Bytes come once, and in order."""

    def pause_when_read(self) -> Any:
        """Let the relay of the only replica read nothing more after the next command; return it."""
        (relay,) = self.registry.connected
        self.patch(relay, "received", lambda commands: relay.connection.pause_reading())
        return relay

    def test_a_repeated_request_is_acknowledged_and_not_handled_again(self) -> None:
        """A proxy repeats what it believes to be lost."""
        door = self.door()
        hello = b'HELLO {"uuid":"u","name":"n","version":3}\n'
        answers = [door.post(hello, 0) for _ in range(3)]
        door.pass_(0.1)

        self.assertEqual([{"received": len(hello)}] * 3, [answer.json() for answer in answers])
        self.assertEqual(1, len(door.replica.lines("WELCOME")))
        self.assertEqual([], door.errors())

    def test_a_gap_is_refused(self) -> None:
        """And so is what was cut elsewhere before."""
        door = self.door()
        door.replica.say("PING 1")
        for offset in (0, 6, 8, 2**62):
            refused = door.post(b"PING 22\n", offset)

            self.assertEqual((409, "bad_offset"), (refused.status, refused.json()["error"]))
        door.replica.say("PING 2")

        self.assertEqual([7, 14], [answer.json()["received"] for answer in door.answers])
        self.assertEqual([], door.errors())

    def test_a_request_is_answered_once_its_bytes_are_handled(self) -> None:
        """While a replica does not read, it is not read either: nothing else would bound what waits here."""
        door = self.door()
        door.subscribe()
        relay = self.pause_when_read()
        talk, other = self.talk(), self.talk()
        talk.say(self.request("POST", "/v1/native/bytes", b"PING 1\n", *door.of_post()))
        other.say(self.request("POST", "/v1/native/bytes", b"PING 1\n", *door.of_post()))
        self.clock.advance(1)
        waiting = talk.heard
        relay.connection.resume_reading()

        self.assertEqual(b"", waiting)
        self.assertEqual({"received": door.offset + 7}, talk.answer().json())
        self.assertEqual({"received": door.offset + 7}, other.answer().json())

    def test_a_second_concurrent_request_of_a_connection_is_refused(self) -> None:
        """Bytes would pile up behind those that wait."""
        door = self.door()
        door.subscribe()
        self.pause_when_read()
        talk = self.talk()
        talk.say(self.request("POST", "/v1/native/bytes", b"PING 1\n", *door.of_post()))
        door.offset += 7
        refused = door.post(b"PING 2\n")

        self.assertEqual((409, "bad_offset"), (refused.status, refused.json()["error"]))
        talk.leave()

    def test_who_never_reads_is_let_go_and_the_request_is_answered(self) -> None:
        """After the time that the native protocol allows."""
        door = self.door()
        door.subscribe()
        self.pause_when_read()
        talk = self.talk()
        talk.say(self.request("POST", "/v1/native/bytes", b"PING 1\n", *door.of_post()))
        for _ in range(int(STALLED_SECONDS // 5) + 6):
            self.clock.advance(5)
        door.pass_(0)

        self.assertIn("were not read for 300 seconds", door.errors()[0])
        self.assertEqual(200, talk.answer().status)
        self.assertEqual({}, self.native_transports())

    def test_a_slow_replica_is_not_written_to(self) -> None:
        """Facts wait in the log."""
        door = self.door()
        door.talk.transport.is_slow = True
        door.subscribe()
        for _ in range(20):
            self.post("receipts", *[[receipt("x" * 1_000)] for _ in range(20)])
            self.clock.advance(0.1)
        held = len(door.talk.heard)
        producer: Any = door.talk.transport.producer
        for _ in range(60):
            producer.resumeProducing()
            self.clock.advance(0.1)
        door.pass_(0)

        self.assertLess(held, 100_000)
        self.assertEqual(400, sum(block.lines for block in door.replica.blocks("facts")))

    def test_a_body_over_the_limit_is_refused(self) -> None:
        """The connection stays."""
        door = self.door()
        refused = door.post(b"x" * ((NATIVE_BYTES.max_body or 0) + 1))

        self.assertEqual((413, "too_large"), (refused.status, refused.json()["error"]))
        door.replica.say("PING 1")
        self.assertEqual(200, door.answers[0].status)

    def test_what_was_changed_on_the_way_is_refused(self) -> None:
        """The digest of HTTP tells."""
        door = self.door()
        wrong = f"Content-Digest: sha-256=:{'A' * 43}=:"
        refused = door.post(b"PING 1\n", None, wrong)

        self.assertEqual((400, "garbled"), (refused.status, refused.json()["error"]))

    def test_bytes_have_the_type_of_bytes(self) -> None:
        """Pages of other sites can post texts without asking."""
        door = self.door()
        for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded"):
            headers = [one for one in door.of_post() if not one.startswith("Content-Type")]
            answer = self.ask("POST", "/v1/native/bytes", b"PING 1\n", *headers, f"Content-Type: {kind}")

            self.assertEqual((415, "content_type"), (answer.status, answer.json()["error"]))


class AccessTests(DoorCase):
    """Who may open a connection, and send on it."""

    def test_a_key_needs_the_right(self) -> None:
        """That of replicas; without a key there is none."""
        self.use(LIMITED, READER)
        codes = [
            self.ask("POST", path, b"", *headers).json()["error"]
            for path in ("/v1/native", "/v1/native/bytes")
            for headers in ([], ["Authorization: Bearer of reader"], ["Authorization: Bearer no"])
        ]

        self.assertEqual(["unauthorized", "no_rights", "unauthorized"] * 2, codes)
        self.assertEqual(({}, []), (self.native_transports(), self.registry.connected))

    def test_a_peer_on_another_machine_needs_a_secret(self) -> None:
        """Even without one, a daemon serves only its own machine."""
        talk = self.talk("192.0.2.7")
        talk.say(self.request("POST", "/v1/native"))

        self.assertEqual((403, "no_rights"), (talk.answer().status, talk.answer().json()["error"]))

    def test_pages_of_other_sites_open_none(self) -> None:
        """A browser on the machine of the daemon is a local peer."""
        for header, code in (
            ("Origin: http://evil.example", "foreign_origin"),
            ("Sec-Fetch-Site: cross-site", "foreign_origin"),
            ("Host: evil.example", "foreign_host"),
        ):
            answer = self.ask("POST", "/v1/native", b"", header)

            self.assertEqual((403, code), (answer.status, answer.json()["error"]))
        self.assertEqual([], self.registry.connected)

    def test_a_connection_is_of_the_key_that_opened_it(self) -> None:
        """Another replica that learns its id can neither send on it, nor tell that it is there."""
        other = Key(name="other", secret="of other", rights=ALL_RIGHTS)
        self.use(LIMITED, other)
        door = self.door("Authorization: Bearer of paris")
        asked = "Authorization: Bearer of other"
        refused = door.post(b"PING 1\n", None, asked)
        unknown = door.post(b"PING 1\n", None, asked, name="0" * 64)
        nameless = self.ask("POST", "/v1/native/bytes", b"", asked)

        self.assertEqual((404, "no_connection"), (refused.status, refused.json()["error"]))
        self.assertEqual(refused.body, unknown.body)
        self.assertEqual("no_connection", nameless.json()["error"])

    def test_the_secret_of_http_is_not_enough(self) -> None:
        """The replica shows its own in HELLO."""
        self.use(LIMITED)
        for name, secret in (("berlin", ""), ("berlin", "wrong"), ("berlin", "paris")):
            door = self.door(BEARER)
            welcome = door.replica.greet(door, name=name, secret=secret)

            self.assertIsNone(welcome)
            self.assertEqual("no_rights", door.replica.refusal()["code"])
            self.assertTrue(door.is_ended)

    def test_a_key_that_is_revoked_ends_the_connection(self) -> None:
        """Of HTTP by its request, natively by its handshake."""
        self.use(LIMITED)
        door = self.door("Authorization: Bearer of paris")
        door.subscribe(name="paris", secret="of paris")
        self.registry.keys.replace(Keyring(SECRET))
        self.site.recheck()
        is_aborted = door.talk.transport.is_aborted
        door.talk.leave()

        self.assertTrue(is_aborted)
        self.assertEqual([], self.registry.connected)

    def test_the_number_of_connections_is_bounded(self) -> None:
        """Each costs memory."""
        self.patch(native_routes, "MAX_CONNECTIONS", 2)
        first, _ = self.door(), self.door()
        refused = self.ask("POST", "/v1/native")
        first.talk.leave()

        self.assertEqual((503, "out_of_descriptors"), (refused.status, refused.json()["error"]))
        self.assertEqual(200, self.door().opened.status)

    def test_without_replication_there_is_no_door(self) -> None:
        """As in a program that serves a log of its own."""
        self.site = self.make_site()

        self.assertEqual(404, self.ask("POST", "/v1/native").status)

    def test_no_log_line_has_the_id(self) -> None:
        """Whoever reads the log could send."""
        with capturedLogs() as events:
            door = self.door()
            door.replica.say("NONSENSE")
            door.post(b"PING 1\n", 99)
            door.pass_(0.1)
        lines = [str(formatEvent(event)) for event in events]

        self.assertTrue(any("closing" in line for line in lines), lines)
        self.assertFalse(any(door.name in line for line in lines))


class _Certificate:
    CN = "paris"

    def get_subject(self) -> "_Certificate":
        return self


class CertificateTests(DoorCase):
    """A certificate is proof enough, as at a native port."""

    def test_a_replica_with_a_certificate_needs_no_secret(self) -> None:
        """There is a shared one for others, which it need not know."""
        self.use(Key(name="paris", secret=None, rights=LIMITED.rights))
        talk = self.talk

        def certified(peer: str = "127.0.0.1") -> Any:
            made = talk(peer)
            made.transport.getPeerCertificate = _Certificate  # type: ignore[attr-defined]
            return made

        self.patch(self, "talk", certified)
        for name in ("paris", "berlin"):
            door = self.door()
            door.replica.greet(door, uuid=f"of-{name}", name=name)

            self.assertEqual(1, len(door.replica.lines("WELCOME")), door.replica.heard)
            door.replica.say("DIGESTS [0]")
            door.pass_(0.1)
            self.assertEqual(1, len(door.replica.lines("DIGESTS_ARE")), door.replica.heard)


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_bytes_may_be_cut_anywhere(size: int) -> None:
    """A request is not a line."""
    case = DoorCase()
    case.setUp()
    try:
        door = Door(case)
        write = door.write

        def in_pieces(data: bytes) -> None:
            for at in range(0, len(data), size):
                write(data[at : at + size])

        door.write = in_pieces  # type: ignore[method-assign]
        door.subscribe()

        assert not door.errors()
        door.talk.leave()
    finally:
        case.doCleanups()
