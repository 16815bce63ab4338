"""What operators and replicas ask over HTTP: copies, leases, who is primary."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred

from synrepl.base.history import EpochStart
from synrepl.errors import ConfigError, NotConnected, StorageError
from synrepl.replicas.described import SHOWN
from synrepl.replicas.relay.leases import DROPPED, MAX_ANONYMOUS
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.messages import Claim, HandOver, PeerStatus
from synrepl.replicas.roles.metrics import RoleMetrics
from synrepl.replicas.settings import RelaySettings, UpstreamSettings, stream_acks
from synrepl.replication.addresses import Address
from synrepl.replication.hooks import StoredHere
from synrepl.wire.acks import Acks
from synrepl.wire.position import LogPosition
from tests.http.builders import Answer, SiteCase, Talk, receipt
from tests.operations import count_operations
from tests.replicas.http.native_door import Door
from tests.replicas.served import ServedReplicas, Stale

HERE = Address(http="http://hs.example:9093")
HS = UpstreamSettings(server_name="hs.example")
CLAIM = {"epoch": 2, "uuid": "z", "address": "- http://other:9093", "history": "", "name": "other"}


class Nobody:
    """`roles.IPeerClient` and the replica of a daemon that has neither.

    What is in `others` answers at its address.
    """

    def __init__(self) -> None:
        self.others: dict[str, PeerStatus] = {}

    async def hand_over(self, address: Address, asked: HandOver) -> Any:
        raise AssertionError(address)

    async def claim(self, address: Address, claim: Claim) -> None:
        """Nobody hears it."""

    async def describe(self, address: Address, *, after: int | None = None) -> PeerStatus:
        """What was prepared for this address."""
        if address.http not in self.others:
            raise NotConnected(f"{address.http} cannot be reached")
        return self.others[address.http]


class CopiesCase(SiteCase):
    """A primary with all that its copies ask for."""

    def setUp(self) -> None:
        super().setUp()
        ephemeral = [stream.name for stream in self.table if stream.ephemeral]
        self.network = Nobody()
        self.roles = RoleManager(
            self.log,
            self.clock,
            name="primary",
            has_upstream=False,
            stale_seconds=60.0,
            address=lambda: HERE,
            owner=self,
            peers=self.network,
            metrics=RoleMetrics(CollectorRegistry()),
        )
        self.registry = ReplicaRegistry(
            self.log,
            self.publisher,
            self.clock,
            RelaySettings(server_name="hs.example"),
            self.roles,
        )
        self.registry.subscribe()
        self.addCleanup(self.registry.halt)
        self.addCleanup(self.roles.stop)
        self.roles.start()
        self.ephemeral = ephemeral
        self.publisher.use(self.roles, StoredHere())
        self.site = self.make_site(**self.served())

    def served(self) -> dict[str, Any]:
        """The context of a site with these copies."""
        return ServedReplicas(self.roles, self.registry).options()

    def follow(self, where: Address | None) -> Any:
        return Nobody()

    def may_follow(self, where: Address) -> bool:
        return True

    def known_daemons(self) -> Sequence[Address]:
        return ()

    def listed_daemons(self) -> Sequence[Address]:
        return [Address(http=http) for http in self.network.others]

    def replica_address(self, uuid: str) -> Address | None:
        return None

    def role_changed(self) -> None:
        """Nothing hangs on it here."""

    def say(self, method: str, path: str, **said: Any) -> Answer:
        """Ask with this body."""
        return self.ask(method, path, json.dumps(said).encode())

    def place(self) -> dict[str, Any]:
        """Where the log stands."""
        place = self.log.position
        return {"epoch": place.epoch, "serial": place.serial, "digest": place.digest}

    def subscribe(self, uuid: str = "u1", position: LogPosition | None = None, **more: Any) -> Door:
        """A replica asks to be served over HTTP, and holds the line."""
        door = Door(self)
        self.addCleanup(door.talk.leave)
        welcome = door.replica.greet(door, uuid=uuid, name="paris")
        assert welcome is not None, door.replica.heard
        door.replica.subscribe(door, welcome, position or self.log.position, **more)
        return door


class ReplicaTests(CopiesCase):
    """The same judgement and the same list as for those that speak natively."""

    def test_replication_status_is_described(self) -> None:
        """A replica compares it with what it has."""
        self.receipts(2)

        told = self.get("/v1/replication").json()

        self.assertEqual(
            (self.log.history, self.place(), "primary", 0, str(HERE)),
            tuple(told[key] for key in ("history", "position", "role", "trimmed_upto", "address")),
        )

    def test_whether_the_log_has_a_promise_is_told_to_who_asks_for_newer_facts(self) -> None:
        """A promotion asks so (`roles/promise_check.py`)."""
        self.assertNotIn("has_promise", self.get("/v1/replication").json())
        self.assertFalse(self.get("/v1/replication?after=0").json()["has_promise"])
        promising = Deferred.fromCoroutine(self.registry.promises.promise(Acks.parse("1")))
        self.clock.advance(1)
        self.successResultOf(promising)

        told = self.get("/v1/replication?after=0").json()

        self.assertTrue(told["has_promise"])
        self.assertEqual(["promises"], [fact["stream"] for fact in told["newer"]])

    def test_a_replica_that_has_not_asked_for_anything_is_sent_no_heartbeat(self) -> None:
        self.receipts(2)
        door = Door(self)
        self.addCleanup(door.talk.leave)
        self.assertIsNotNone(door.replica.greet(door, uuid="u1", name="paris"))
        door.pass_(30)
        self.assertEqual([], door.replica.lines("HEARTBEAT"))

    def test_a_replica_is_on_the_list_from_when_it_is_served(self) -> None:
        """And its lease moves with what it acknowledges."""
        self.receipts(2)
        door = self.subscribe()
        self.receipts(3)
        door.pass_(0.1)
        behind = self.registry.status()[0]
        door.replica.say("ACK 1 5 0")

        self.assertEqual(("paris", "behind", 2), tuple(behind[key] for key in ("name", "state", "serial")))
        self.assertEqual([5], [lease.serial for lease in self.registry.leases.all()])

    def test_an_acknowledgement_of_what_was_not_sent_ends_the_connection(self) -> None:
        """As does one that goes back; neither moves the lease."""
        for serial in (9, 1):
            self.receipts(2)
            door = self.subscribe(f"u{serial}")
            before = self.registry.leases[f"u{serial}"]
            door.replica.say(f"ACK 1 {serial} 0")
            door.pass_(0.1)

            self.assertEqual("bad_ack", door.replica.refusal()["code"])
            self.assertTrue(door.is_ended)
            self.assertEqual(before, self.registry.leases[f"u{serial}"])

    def test_who_cannot_be_served_is_told_why_and_holds_nothing(self) -> None:
        """Each case with a code of its own."""
        self.receipts(2)
        place = self.place()
        cases: list[tuple[str, dict[str, Any]]] = [
            ("other_history", {"history": "x"}),
            ("ahead", {"position": place | {"serial": 7}}),
            ("fork", {"position": place | {"digest": "0" * 64}}),
            ("other_epoch", {"position": place | {"epoch": 3}}),
        ]
        for code, asked in cases:
            door = self.subscribe(position=LogPosition(**asked.pop("position", place)), **asked)

            self.assertEqual(code, door.replica.refusal()["code"])
        self.assertEqual([], self.registry.leases.all())

    def test_nonsense_is_refused(self) -> None:
        """Before anything is kept of it."""
        cases: list[tuple[str, dict[str, Any], int]] = [
            ("/v1/leases", {"name": "two words"}, 400),
            ("/v1/handover", {"seconds": -1}, 400),
            ("/v1/promote", {"forse": True}, 400),
        ]
        for path, said, status in cases:
            self.assertEqual(status, self.say("POST", path, **said).status, path)

    def test_a_reader_with_a_name_is_waited_for(self) -> None:
        """What comes after what it has is kept for it, and it is not a replica."""
        self.receipts(3)
        self.get("/v1/changelog?since=1", "Synrepl-Reader: report")
        self.get("/v1/changelog?since=3", "Synrepl-Reader: report")
        beyond = self.get("/v1/changelog?since=9", "Synrepl-Reader: other")

        (lease,) = self.registry.leases.all()
        self.assertEqual(("report", False, 3), (lease.name, lease.registered, lease.serial))
        self.assertEqual(409, beyond.status)

    def test_a_reader_that_has_ended_well_is_no_lost_replica(self) -> None:
        """Neither an hour later, when its lease has ended: after each nightly run of an archive."""
        self.receipts(3)
        self.get("/v1/changelog?since=3", "Synrepl-Reader: archive")
        seen = [self.registry.status()]
        for seconds in (60, 3600):
            self.clock.advance(seconds)
            self.wait(Deferred.fromCoroutine(self.registry.leases.check()))
            seen.append(self.registry.status())

        self.assertEqual([[], [], []], seen)
        (lease,) = self.registry.describe_leases()
        self.assertEqual(("archive", False), (lease["name"], lease["ended"] is None))

    def test_readers_beyond_the_bound_are_refused_and_those_before_are_not(self) -> None:
        """Anybody can name himself in a URL, and the log is held back for each."""
        self.receipts(3)
        for number in range(MAX_ANONYMOUS):
            self.registry.leases.make(f"reader:r{number}", f"r{number}", registered=False, serial=1)

        refused = self.get("/v1/changelog?since=1", "Synrepl-Reader: late")
        again = self.get("/v1/changelog?since=3", "Synrepl-Reader: r7")
        nameless = self.get("/v1/changelog?since=1")

        self.assertEqual((429, "too_many", True), (refused.status, *self.said(refused)))
        self.assertEqual([200, 200], [again.status, nameless.status])
        self.assertEqual([], self.subscribe().replica.lines("REFUSED"))

    def said(self, answer: Answer) -> tuple[str, bool]:
        """The code of a refusal, and whether the same may work later."""
        told = answer.json()
        return told["error"], told["retryable"]

    def test_status_shows_some_leases_and_counts_the_rest(self) -> None:
        """`/v1/leases` has all of them."""
        for number in range(SHOWN + 7):
            self.registry.leases.make(f"u{number}", f"n{number}", registered=True, serial=0)

        told = self.get("/v1/status").json()
        page = self.get("/status").body.decode()

        self.assertEqual([SHOWN, SHOWN], [len(told[what]) for what in ("replicas", "leases")])
        self.assertEqual([7, 7], [told[f"more_{what}"] for what in ("replicas", "leases")])
        self.assertIn("7 more", page)
        self.assertEqual(SHOWN + 7, len(self.get("/v1/leases").json()["leases"]))

    def test_leases_are_described_with_work_that_grows_with_their_number(self) -> None:
        """A scrape of Prometheus must not stop the daemon: each lease is looked at a few times, not once for
        each other one."""

        def examine() -> None:
            self.registry.status()
            self.registry.describe_leases()
            self.registry.peers(excluding="u1")
            self.wait(Deferred.fromCoroutine(self.registry.leases.check()))

        costs = []
        for numbers in (range(500), range(500, 1_000)):
            for number in numbers:
                self.registry.leases.make(f"u{number}", f"n{number}", registered=True, serial=0)
                self.registry.note_http_reader(f"u{number}", 60.0)
            costs.append(count_operations(examine))

        # Four times as much for twice as many, while each lease looked through all others.
        self.assertLess(costs[1], 2.5 * costs[0])

    def test_readers_that_are_gone_are_forgotten(self) -> None:
        """Each new name would be looked through for ever."""
        for number in range(100):
            self.registry.note_http_reader(f"u{number}", 15.0)
        self.clock.advance(16)
        self.registry.note_http_reader("late", 15.0)

        self.assertEqual({"late"}, self.registry.present())

    def test_without_copies_there_is_nothing_there(self) -> None:
        """As in a program that serves a log of its own."""
        self.site = self.make_site()

        for method, path in (("GET", "/v1/replication"), ("GET", "/v1/leases"), ("POST", "/v1/promote")):
            self.assertEqual(404, self.ask(method, path, b"{}" if method == "POST" else b"").status)

    def test_a_stale_copy_answers_no_reads_if_it_is_told_to(self) -> None:
        """Writes and status go on."""
        self.receipts(1)
        self.site = self.make_site(**Stale(refuses=True).options())
        paths = ("/v1/changelog", "/v1/streams/receipts/rows")

        refused = [self.get(path) for path in paths]

        self.assertEqual([503, 503], [answer.status for answer in refused])
        self.assertEqual("5", refused[0].headers["retry-after"])
        self.assertEqual(200, self.post("receipts", [receipt()]).status)
        self.site = self.make_site(**Stale().options())
        self.assertEqual([200, 200], [self.get(path).status for path in paths])


class LeaseTests(CopiesCase):
    """An operator's hand on them."""

    def test_leases_are_added_shown_and_dropped(self) -> None:
        """Who was dropped is not served, until it is added again."""
        added = self.say("POST", "/v1/leases", name="lisbon").json()
        twice = self.say("POST", "/v1/leases", name="lisbon")
        self.subscribe()
        dropped = self.ask("DELETE", "/v1/leases/paris")
        refused = self.subscribe().replica.refusal()
        again = self.say("POST", "/v1/leases", name="paris")

        self.assertEqual(("lisbon", 0), (added["name"], added["serial"]))
        self.assertEqual((409, "known"), (twice.status, twice.json()["error"]))
        self.assertEqual(200, dropped.status)
        self.assertEqual("unknown", refused["code"])
        self.assertEqual(200, again.status)
        self.assertEqual([], self.subscribe().replica.lines("REFUSED"))
        shown = {one["name"]: one["reason"] for one in self.get("/v1/leases").json()["leases"]}
        self.assertEqual({"lisbon": "", "paris": ""}, shown)
        self.assertEqual(404, self.ask("DELETE", "/v1/leases/nobody").status)

    def test_a_replica_that_is_expected_has_an_id_of_its_own(self) -> None:
        """Unless its own is given."""
        oslo, rome = (self.say("POST", "/v1/leases", name=name).json()["uuid"] for name in ("oslo", "rome"))
        given = self.say("POST", "/v1/leases", name="bern", uuid="b-1").json()["uuid"]

        self.assertTrue(oslo.startswith("expected-"), oslo)
        self.assertTrue(rome.startswith("expected-"), rome)
        self.assertNotEqual(oslo, rome)
        self.assertEqual("b-1", given)

    def test_what_an_operator_did_to_a_lease_is_on_disk_before_the_answer(self) -> None:
        """A daemon that dies at once must not serve, or retain facts for, whom the operator dropped."""
        self.subscribe()

        self.say("POST", "/v1/leases", name="lisbon")
        self.ask("DELETE", "/v1/leases/paris")

        kept = {(lease.name, lease.reason) for lease in self.engine.leases.all()}
        self.assertEqual({("lisbon", ""), ("paris", DROPPED)}, kept)

    def test_what_cannot_be_saved_is_not_answered_as_done(self) -> None:
        """On a full disk it would be undone by the next restart."""
        self.subscribe()

        def full(*_: Any) -> None:
            raise StorageError(op="keep_leases", why="the disk is full", retryable=True)

        self.patch(self.engine.leases, "store", full)
        added = self.say("POST", "/v1/leases", name="lisbon")
        dropped = self.ask("DELETE", "/v1/leases/paris")

        self.assertEqual([True, True], [answer.status >= 500 for answer in (added, dropped)])
        self.assertIn("the disk is full", added.json()["message"])


class RoleTests(CopiesCase):
    """Who is primary, as others say it."""

    def test_only_a_replica_is_promoted(self) -> None:
        """And only who is stopped has something to give up."""
        promoted, resynced = self.say("POST", "/v1/promote"), self.say("POST", "/v1/resync")

        self.assertEqual((409, "not_a_replica"), (promoted.status, promoted.json()["error"]))
        self.assertEqual((409, "not_stopped"), (resynced.status, resynced.json()["error"]))

    def describe(self, **other: Any) -> None:
        """Let another daemon, which is listed, say this of itself at its address."""
        said: dict[str, Any] = {"history": self.log.history, "uuid": "z", "position": self.log.position}
        self.network.others["http://other:9093"] = PeerStatus(**(said | other))

    def test_who_hands_over_takes_no_facts_for_a_while(self) -> None:
        """And says where it stands, once all that came before is kept."""
        self.receipts(2)
        self.subscribe("z")
        self.describe(role="replica", promoting=True)
        told = self.say("POST", "/v1/handover", seconds=10, uuid="z", address=CLAIM["address"])
        refused = self.post("receipts", [receipt()])
        self.clock.advance(11)

        self.assertEqual(self.place(), told.json())
        self.assertEqual((503, "handing_over"), (refused.status, refused.json()["error"]))
        self.assertEqual(200, self.post("receipts", [receipt()]).status)

    def test_who_hears_of_a_later_epoch_is_fenced(self) -> None:
        """It says where the primary is, and takes nothing more; a claim of another history means nothing."""
        self.receipts(2)
        place = self.log.position
        epoch_start = EpochStart(epoch=2, serial=place.serial, digest=place.digest, at_ms=1, why="promoted")
        self.describe(
            role="primary", position=LogPosition(2, place.serial, place.digest), epoch_starts=(epoch_start,)
        )
        other = self.say("POST", "/v1/claim", **(CLAIM | {"history": "another"}))
        before = self.post("receipts", [receipt()]).status
        self.assertEqual((409, "other_history"), (other.status, other.json()["error"]))
        heard = self.say("POST", "/v1/claim", **(CLAIM | {"history": self.log.history}))
        refused = self.post("receipts", [receipt()])

        self.assertEqual((200, 200), (before, heard.status))
        self.assertEqual((503, "fenced"), (refused.status, refused.json()["error"]))
        self.assertIn("http://other:9093", refused.json()["moved_to"])


class AcksTests(CopiesCase):
    """Appends that wait until a replica, which a test lets speak, has them on disk."""

    def setUp(self) -> None:
        super().setUp()
        self.door = Door(self)
        welcome = self.door.replica.greet(self.door, name="paris")
        assert welcome is not None
        self.door.replica.subscribe(self.door, welcome)
        self.door.pass_(0.1)
        first = self.posted("?acks=1")
        self.assertEqual((b"", 2), (first.heard, self.log.head.serial))
        # The list of replicas, and the fact.
        self.acknowledge(2)
        self.assertEqual(2, first.answer().json()["first_serial"])

    def posted(self, query: str, **more: Any) -> Talk:
        """A request whose answer may wait."""
        body = json.dumps({"facts": [[["@ada:hs.example"]]], **more}).encode()
        talk = self.talk()
        talk.say(self.request("POST", f"/v1/streams/push_rules/facts{query}", body))
        return talk

    def acknowledge(self, serial: int) -> None:
        """The replica has everything up to there on disk."""
        self.door.replica.say(f"ACK {self.log.head.epoch} {serial} 0")
        self.door.pass_(0.1)

    def test_the_answer_comes_with_the_acknowledgement(self) -> None:
        """Not before, and the fact is in the log at once."""
        talk = self.posted("?acks=1")
        self.assertEqual(("", 3), (talk.heard.decode(), self.log.head.serial))

        self.acknowledge(3)

        self.assertEqual({"epoch": 1, "first_serial": 3, "tokens": [2]}, talk.answer().json())

    def test_after_the_time_out_the_key_waits_again(self) -> None:
        """Who gave none is given one."""
        talk = self.posted("?acks=1&timeout=2")
        self.clock.advance(2)

        answer = talk.answer()
        body = answer.json()
        self.assertEqual(
            (504, "outcome_unknown", 3, []),
            (
                answer.status,
                body["error"],
                body["serial"],
                body["acknowledged"],
            ),
        )
        again = self.posted("?acks=1", idempotency_key=body["idempotency_key"])
        self.assertEqual(b"", again.heard)
        self.acknowledge(3)
        self.assertEqual(3, again.answer().json()["first_serial"])
        self.assertEqual(3, self.log.head.serial)
        # What was acknowledged before is answered at once.
        repeated = self.posted("?acks=1", idempotency_key=body["idempotency_key"])
        self.assertEqual(200, repeated.answer().status)

    def test_what_cannot_be_waited_for_is_refused(self) -> None:
        """Before anything is stored."""
        for query, why in (
            ("acks=2", "acks: 2 replicas are more than there are: paris"),
            ("acks=oslo", "acks: no replica is called oslo; there are: paris"),
            ("acks=", "acks must be a number of replicas, or their names"),
            ("acks=1000", "acks must be at most 100 replicas"),
        ):
            answer = self.posted(f"?{query}").answer()
            self.assertEqual((400, "bad_request"), (answer.status, answer.json()["error"]), query)
            self.assertIn(why, answer.json()["message"])
        typing = self.ask("POST", "/v1/streams/typing/facts?acks=1", b'{"facts":[[["!a:hs",[]]]]}')
        self.assertEqual(400, typing.status)
        self.assertIn("typing is ephemeral", typing.json()["message"])
        self.assertEqual(2, self.log.head.serial)

    def test_the_setting_decides_where_the_request_does_not(self) -> None:
        """For each stream; a request may ask for none."""
        self.registry.acknowledgements.defaults = stream_acks(["push_rules=1"])
        talk = self.posted("")
        self.assertEqual(b"", talk.heard)
        self.assertEqual(200, self.posted("?acks=0").answer().status)
        self.assertEqual(200, self.post("receipts", [receipt()]).status)
        self.acknowledge(3)
        self.assertEqual(200, talk.answer().status)

    def test_a_batch_waits_for_all_of_it(self) -> None:
        """Its last fact."""
        body = {
            "appends": [
                {"stream": "push_rules", "facts": [[["@ada:hs.example"]]]},
                {"stream": "receipts", "facts": [[receipt()], [receipt()]]},
            ]
        }
        talk = self.talk()
        talk.say(self.request("POST", "/v1/facts?acks=1&timeout=5", json.dumps(body).encode()))
        for serial in (3, 4):
            self.acknowledge(serial)
            self.assertEqual(b"", talk.heard)
        self.acknowledge(5)
        self.assertEqual([3, 4], [one["first_serial"] for one in talk.answer().json()["appends"]])

        late = self.talk()
        late.say(self.request("POST", "/v1/facts?acks=1&timeout=5", json.dumps(body).encode()))
        self.clock.advance(5)
        self.assertEqual(504, late.answer().status)
        self.assertIn("idempotency_key", late.answer().json())


def test_the_setting_is_a_list_or_a_table() -> None:
    """As on the command line, and as in the file."""
    parsed = {"push_rules": Acks(1), "packages": Acks(2, ("oslo", "paris"))}

    assert parsed == stream_acks(["push_rules=1", "packages=paris,oslo"])
    assert parsed == stream_acks({"push_rules": 1, "packages": "paris,oslo"})
    assert {"a": Acks(1)} == stream_acks("a=1")
    assert {} == stream_acks(())


@pytest.mark.parametrize("value", ["push_rules", ["a=1", "a=2"], ["a b=1"], ["=1"], ["a="], ["a=101"], 7])
def test_another_setting_is_refused(value: Any) -> None:
    """With the stream that is meant."""
    with pytest.raises(ConfigError, match="must be"):
        stream_acks(value)
