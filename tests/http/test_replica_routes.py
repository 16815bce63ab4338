"""What operators and replicas ask over HTTP: copies, leases, who is primary."""

import json
from typing import Any

from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web.resource import Resource

from synrepl.errors import NotConnected, RemoteProtocolError, StorageError
from synrepl.ports.history import EMPTY, EpochStart, LogPosition
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import CommandForwarder
from synrepl.replication.follower_commands import FollowerCommands
from synrepl.replication.relay.leases import DROPPED, MAX_ANONYMOUS
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.replication.replica.replica import Replica
from synrepl.replication.roles.manager import RoleManager
from synrepl.replication.roles.messages import Claim, HandOver, PeerStatus
from synrepl.replication.settings import CopySettings, RelaySettings
from synrepl.replication.status import NO_REPLICATION, SHOWN
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.transports.http.changelog_lines import HeartbeatLine, encode_line
from synrepl.transports.http.upstream import HttpConversation, HttpUpstream
from synrepl.transports.settings import UpstreamSettings
from synrepl.wire.commands import FederationAck, RemoteServerUp
from synrepl.wire.native import Subscribe
from tests.http.builders import Answer, SiteCase, receipt, typing
from tests.memory_engine import FaultyEngine
from tests.operations import count_operations

HERE = Address(http="http://hs.example:9093")
HS = UpstreamSettings(server_name="hs.example")
PARIS = CopySettings(replica_name="paris")
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

    async def describe(self, address: Address, *, must_administer: bool) -> PeerStatus:
        """What was prepared for this address."""
        if address.http not in self.others:
            raise NotConnected(f"{address.http} cannot be reached")
        return self.others[address.http]

    async def digest(self, address: Address, serial: int) -> str | None:
        raise AssertionError(address)


class Stale:
    """Of what a daemon says of its copies, that it lacks something."""

    def not_ready_reasons(self) -> list[tuple[str, float]]:
        return [("stale: this copy may lack the facts of the last 61 seconds", 0.0)]


class DescribedRelays(Stale):
    """What a primary with such relays says of its copies."""

    def __init__(self, relays: ReplicaRegistry) -> None:
        self._relays = relays

    def status(self) -> dict[str, Any]:
        return NO_REPLICATION | {
            "replicas": self._relays.status(),
            "leases": self._relays.describe_leases(),
        }

    def state(self) -> str:
        return ""

    def not_ready_reasons(self) -> list[tuple[str, float]]:
        return []

    def problems(self) -> list[tuple[str, float]]:
        return []

    def lag_seconds(self) -> float:
        return 0.0

    def lag_rows(self) -> int:
        return 0


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
            address=lambda: HERE,
            follow=lambda where: Nobody(),  # type: ignore[arg-type, return-value]
            peers=self.network,
            is_leased=lambda uuid: self.relays.leases[uuid] is not None,
        )
        self.relays = ReplicaRegistry(
            self.log,
            self.publisher,
            self.clock,
            RelaySettings(server_name="hs.example"),
            self.roles,
        )
        self.addCleanup(self.relays.halt)
        self.addCleanup(self.roles.stop)
        self.roles.start()
        self.ephemeral = ephemeral
        self.site = self.make_site(roles=self.roles, relays=self.relays)

    def say(self, method: str, path: str, **said: Any) -> Answer:
        """Ask with this body."""
        return self.ask(method, path, json.dumps(said).encode())

    def place(self) -> dict[str, Any]:
        """Where the log stands."""
        place = self.log.position
        return {"epoch": place.epoch, "serial": place.serial, "digest": place.digest}

    def subscribe(self, uuid: str = "u1", **more: Any) -> Answer:
        """A replica asks to be served."""
        asked = {"history": self.log.history, "position": self.place(), **more}
        return self.say("POST", f"/v1/replicas/{uuid}", name="paris", subscription=asked)


class ReplicaTests(CopiesCase):
    """The same judgement and the same list as for those that speak natively."""

    def test_what_a_daemon_says_of_itself(self) -> None:
        """A replica compares it with what it has."""
        self.receipts(2)

        told = self.get("/v1/replication").json()

        self.assertEqual(
            (self.log.history, self.place(), "primary", 0, str(HERE)),
            tuple(told[key] for key in ("history", "position", "role", "trimmed_upto", "address")),
        )

    def test_a_replica_is_on_the_list_from_when_it_is_served(self) -> None:
        """And its lease moves with what it acknowledges."""
        self.receipts(2)
        self.assertEqual(200, self.subscribe().status)
        self.receipts(3)
        behind = self.relays.status()[0]
        acked = self.say("POST", "/v1/replicas/u1/ack", epoch=1, serial=5)

        self.assertEqual(("paris", "behind", 2), tuple(behind[key] for key in ("name", "state", "serial")))
        self.assertEqual((200, 5), (acked.status, acked.json()["serial"]))
        self.assertEqual([5], [lease.serial for lease in self.relays.leases.all()])

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
            answer = self.subscribe(**asked)
            self.assertEqual((409, code), (answer.status, answer.json()["error"]))
            self.assertIn("retryable", answer.json())
        self.assertEqual([], self.relays.leases.all())

    def test_nonsense_is_refused(self) -> None:
        """Before anything is kept of it."""
        self.receipts(1)
        self.subscribe()
        cases: list[tuple[str, dict[str, Any], int]] = [
            ("/v1/replicas/u1/ack", {"epoch": 1, "serial": 9}, 409),
            ("/v1/replicas/nobody/ack", {"epoch": 1, "serial": 1}, 409),
            ("/v1/replicas/u1/ack", {"serial": "x"}, 400),
            ("/v1/replicas/u1", {"name": "two words", "subscription": {}}, 400),
            ("/v1/replicas/u1/join", {"name": "x\x1b", "join": {}}, 400),
            ("/v1/replicas/u1/join", {"name": "x", "join": {}, "address": "tcp:a\n"}, 400),
            ("/v1/replicas/u1/join", {"name": "x", "join": {}, "address": "x" * 1001}, 400),
            (f"/v1/replicas/{'u' * 101}/join", {"name": "x", "join": {}}, 400),
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

        (lease,) = self.relays.leases.all()
        self.assertEqual(("report", False, 3), (lease.name, lease.registered, lease.serial))
        self.assertEqual(409, beyond.status)

    def test_readers_beyond_the_bound_are_refused_and_those_before_are_not(self) -> None:
        """Anybody can name himself in a URL, and the log is held back for each."""
        self.receipts(3)
        for number in range(MAX_ANONYMOUS):
            self.relays.leases.make(f"reader:r{number}", f"r{number}", registered=False, serial=1)

        refused = self.get("/v1/changelog?since=1", "Synrepl-Reader: late")
        again = self.get("/v1/changelog?since=3", "Synrepl-Reader: r7")
        nameless = self.get("/v1/changelog?since=1")

        self.assertEqual((429, "too_many", True), (refused.status, *self.said(refused)))
        self.assertEqual([200, 200], [again.status, nameless.status])
        self.assertEqual(200, self.subscribe().status)

    def said(self, answer: Answer) -> tuple[str, bool]:
        """The code of a refusal, and whether the same may work later."""
        told = answer.json()
        return told["error"], told["retryable"]

    def test_status_shows_some_leases_and_counts_the_rest(self) -> None:
        """`/v1/leases` has all of them."""
        for number in range(SHOWN + 7):
            self.relays.leases.make(f"u{number}", f"n{number}", registered=True, serial=0)
        copies = DescribedRelays(self.relays)
        self.site = self.make_site(roles=self.roles, relays=self.relays, replication=copies)

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
            self.relays.status()
            self.relays.describe_leases()
            self.relays.peers(excluding="u1")
            self.wait(Deferred.fromCoroutine(self.relays.leases.check()))

        costs = []
        for numbers in (range(500), range(500, 1_000)):
            for number in numbers:
                self.relays.leases.make(f"u{number}", f"n{number}", registered=True, serial=0)
                self.relays.note_http_reader(f"u{number}", 60.0)
            costs.append(count_operations(examine))

        # Four times as much for twice as many, while each lease looked through all others.
        self.assertLess(costs[1], 2.5 * costs[0])

    def test_readers_that_are_gone_are_forgotten(self) -> None:
        """Each new name would be looked through for ever."""
        for number in range(100):
            self.relays.note_http_reader(f"u{number}", 15.0)
        self.clock.advance(16)
        self.relays.note_http_reader("late", 15.0)

        self.assertEqual({"late"}, self.relays.present())

    def test_without_copies_there_is_nothing_there(self) -> None:
        """As in a program that serves a log of its own."""
        self.site = self.make_site()

        for method, path in (("GET", "/v1/replication"), ("GET", "/v1/leases"), ("POST", "/v1/promote")):
            self.assertEqual(404, self.ask(method, path, b"{}" if method == "POST" else b"").status)

    def test_a_stale_copy_answers_no_reads_if_it_is_told_to(self) -> None:
        """Writes and status go on."""
        self.receipts(1)
        self.site = self.make_site(replication=Stale(), refuse_stale_reads=True)
        paths = ("/v1/changelog", "/v1/streams/receipts/rows")

        refused = [self.get(path) for path in paths]

        self.assertEqual([503, 503], [answer.status for answer in refused])
        self.assertEqual("5", refused[0].headers["retry-after"])
        self.assertEqual(200, self.post("receipts", [receipt()]).status)
        self.site = self.make_site(replication=Stale())
        self.assertEqual([200, 200], [self.get(path).status for path in paths])


class LeaseTests(CopiesCase):
    """An operator's hand on them."""

    def test_leases_are_added_shown_and_dropped(self) -> None:
        """Who was dropped is not served, until it is added again."""
        added = self.say("POST", "/v1/leases", name="lisbon").json()
        twice = self.say("POST", "/v1/leases", name="lisbon")
        self.subscribe()
        dropped = self.ask("DELETE", "/v1/leases/paris")
        refused = self.subscribe()
        again = self.say("POST", "/v1/leases", name="paris")

        self.assertEqual(("lisbon", 0), (added["name"], added["serial"]))
        self.assertEqual((409, "known"), (twice.status, twice.json()["error"]))
        self.assertEqual(200, dropped.status)
        self.assertEqual((409, "unknown"), (refused.status, refused.json()["error"]))
        self.assertEqual(200, again.status)
        self.assertEqual(200, self.subscribe().status)
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

        kept = {(lease.name, lease.reason) for lease in self.engine.leases()}
        self.assertEqual({("lisbon", ""), ("paris", DROPPED)}, kept)

    def test_what_cannot_be_saved_is_not_answered_as_done(self) -> None:
        """On a full disk it would be undone by the next restart."""
        self.subscribe()

        def full(*_: Any) -> None:
            raise StorageError(op="keep_leases", why="the disk is full", retryable=True)

        self.patch(self.engine, "keep_leases", full)
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
        """Let another daemon say this of itself at its address."""
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


class BoundsTests(CopiesCase):
    """What no database can hold is refused at the door."""

    def test_places_beyond_64_bits_are_bad_requests(self) -> None:
        """SQLite raised OverflowError for them: a traceback here, and 500 for the peer."""
        for serial in (2**63, -(2**70), -1):
            place = {"epoch": 1, "serial": serial, "digest": "d"}
            wanted = {"join": "j", "position": place}
            joined = self.say("POST", "/v1/replicas/u/join", name="paris", join=wanted)
            wanted = {"history": self.log.history, "position": place}
            asked = self.say("POST", "/v1/replicas/u", name="paris", subscription=wanted)

            self.assertEqual((400, 400), (joined.status, asked.status), serial)
            self.assertIn("join.position.serial", joined.json()["message"])


class FollowingOverHttpTests(CopiesCase):
    """A whole replica against the site, without a socket."""

    def replica(self, settings: CopySettings = PARIS, **options: Any) -> tuple[Replica, Log]:
        """A replica that has begun."""
        thread = ImmediateThread()
        log = Log(FaultyEngine(), thread, thread, self.clock, ephemeral=self.ephemeral, logger=Logger())
        self.wait(log.start())
        self.client = StubTreq(self.site.resource)
        commands = options.get("commands")
        origin = None if commands is None else commands.origin
        upstream = HttpUpstream(self.clock, HS, where=HERE, client=self.client, origin=origin)
        made = Replica(log, [upstream], self.clock, settings, ephemeral=self.ephemeral, **options)
        self.addCleanup(made.stop)
        made.start()
        self.pass_(3)
        return made, log

    def pass_(self, seconds: float) -> None:
        """Let time pass, and what was written arrive."""
        for _ in range(int(seconds / 0.1)):
            for _ in range(3):
                self.client.flush()
            self.clock.advance(0.1)

    def test_it_joins_and_follows(self) -> None:
        """Facts, receipts, epochs and what nobody keeps."""
        self.receipts(5)
        self.post("receipts", [receipt()], idempotency_key="k")
        self.post("typing", [typing("@ada:hs")])
        replica, log = self.replica()
        self.receipts(2)
        self.wait(self.log.next_epoch("promoted"))
        self.post("receipts", [receipt()], idempotency_key="l")
        self.post("typing", [typing()])
        self.pass_(3)

        self.assertEqual(("live", self.log.position), (replica.state, log.position))
        self.assertEqual(self.log.epoch_starts, log.epoch_starts)
        self.assertEqual(["k", "l"], [one.key.text for one in self.wait(log.receipts_between(0, 99))])
        self.assertEqual(self.log.positions("typing"), log.positions("typing"))
        self.assertEqual(["live"], [one["state"] for one in self.relays.status()])

    def test_a_filtered_one_gets_no_more_than_it_wants(self) -> None:
        """And stands where the primary stands."""
        self.post("push_rules", [["@ada:hs"]])
        self.receipts(5)
        replica, log = self.replica(CopySettings(replica_name="paris", upstream_streams=("push_rules",)))
        self.receipts(3)
        self.post("push_rules", [["@bob:hs"]])
        self.pass_(3)

        facts, _ = self.wait(log.read(after=0, upto=99, limit=99))
        self.assertEqual(("live", self.log.position), (replica.state, log.position))
        self.assertEqual([1, 10], [fact.serial for fact in facts])

    def test_one_that_knows_a_later_epoch_is_refused(self) -> None:
        """The primary was restored, or another took over: nothing of what the replica has is touched."""
        self.receipts(3)
        replica, log = self.replica()
        self.wait(log.next_epoch("restored"))
        replica.stop()
        replica.start()
        self.pass_(3)

        self.assertEqual(("refused", "other_epoch"), (replica.state, replica.status()["refusal"]["code"]))
        self.assertEqual(3, log.serial)
        self.assertNotEqual(EMPTY, log.digest)

    def test_what_followers_send_up_reaches_the_primary_once(self) -> None:
        """In order, through proxies; a request that failed is made again."""
        heard: list[Any] = []
        self.publisher.follower_commands.subscribers[FederationAck].append(heard.append)
        upstream = FollowerCommands(self.log, self.table, self.clock, instance="copy")
        self.addCleanup(upstream.stop)
        dropped: list[str] = []
        commands = CommandForwarder(
            upstream, self.clock, origin="copy-1", is_active=lambda: True, dropped=dropped.append
        )
        self.addCleanup(commands.stop)
        for number in range(3):
            commands.forward(FederationAck(instance="sender1", token=number))
        self.replica(commands=commands)
        for number in range(3, 1200):
            commands.forward(FederationAck(instance="sender1", token=number))
        self.pass_(5)

        self.assertEqual(list(range(1200)), [one.token for one in heard])
        self.assertEqual([], dropped)

    def forwarder(self) -> CommandForwarder:
        """What a replica passes commands up with."""
        upstream = FollowerCommands(self.log, self.table, self.clock, instance="copy")
        self.addCleanup(upstream.stop)
        commands = CommandForwarder(
            upstream, self.clock, origin="copy-1", is_active=lambda: True, dropped=lambda name: None
        )
        self.addCleanup(commands.stop)
        return commands

    def test_what_is_for_all_processes_comes_down_once(self) -> None:
        """A server that is up again is told to the followers of every replica, but to who said it."""
        told: list[Any] = []
        commands = self.forwarder()
        self.receipts(2)
        replica, _ = self.replica(commands=commands, on_command=told.append)
        self.publisher.broadcast(RemoteServerUp(server="one"))
        commands.forward(RemoteServerUp(server="mine"))
        self.pass_(2)
        replica.stop()
        self.publisher.broadcast(RemoteServerUp(server="missed"))
        self.pass_(1)
        replica.start()
        self.pass_(3)
        self.publisher.broadcast(RemoteServerUp(server="two"))
        self.pass_(1)

        self.assertEqual(["one", "two"], [one.server for one in told])


class RecordingClient:
    """A client of a site that remembers what was posted to which path."""

    def __init__(self, site: Any) -> None:
        self.posted: list[tuple[str, Any]] = []
        self._client: Any = StubTreq(site.resource)

    async def request(self, method: str, url: str, *, data: bytes | None, **options: Any) -> Any:
        """As treq does it."""
        if data is not None:
            self.posted.append((url.removeprefix(HERE.http), json.loads(data)))
        return await self._client.request(method, url, data=data, **options)

    def flush(self) -> None:
        """Let what was written arrive."""
        self._client.flush()


class AcknowledgingTests(CopiesCase):
    """What a replica says of its place over HTTP."""

    def test_an_acknowledgement_never_goes_back(self) -> None:
        """The primary may have let go of what was acknowledged; a lower serial would promise that it is
        still there."""
        self.receipts(9)
        client = RecordingClient(self.site)
        conversation = self.wait(
            HttpUpstream(self.clock, HS, where=HERE, client=client).connect("u-1", "paris")
        )
        self.addCleanup(conversation.close)
        place = LogPosition(1, 6, self.wait(self.log.digest_at(6)))
        conversation.subscribe(Subscribe(history=self.log.history, position=place))
        client.flush()

        for serial in (4, 8, 6, 9):
            conversation.acknowledge(LogPosition(1, serial, ""), 0)
            self.clock.advance(1)
            client.flush()

        acknowledged = [said["serial"] for path, said in client.posted if path == "/v1/replicas/u-1/ack"]
        self.assertEqual([6, 8, 8, 9], acknowledged)


class HeartbeatTests(CopiesCase):
    """What an upstream says of its own log."""

    def test_a_heartbeat_names_the_head_of_the_upstream(self) -> None:
        """A replica that is behind knows by how much, before the facts have come."""
        upstream = HttpUpstream(self.clock, HS, where=HERE, client=StubTreq(self.site.resource))
        conversation = HttpConversation(upstream, "u-1", "paris")
        self.addCleanup(conversation.close)
        beat = HeartbeatLine(epoch=1, serial=4, digest="d", now_ms=1, head=9)

        conversation._handle_lines(encode_line("heartbeat", beat).splitlines())

        event = self.wait(conversation.next())
        self.assertEqual((4, 9), (event.serial, event.head))


class Canned(Resource):
    """Answers every request with one JSON object."""

    isLeaf = True

    def __init__(self, **answer: Any) -> None:
        super().__init__()
        self.answer = json.dumps(answer).encode()

    def render(self, request: Any) -> bytes:
        """The answer."""
        return self.answer


class HostileUpstreamTests(CopiesCase):
    """Names and addresses of an upstream are shown in the status and in the log."""

    def connect(self, **changed: Any) -> Any:
        """Connect to an upstream that answers every request with its identity, changed like this."""
        client: Any = StubTreq(Canned(**self.get("/v1/replication").json() | changed))
        upstream = HttpUpstream(self.clock, HS, where=HERE, client=client)
        return Deferred.fromCoroutine(upstream.connect("u-1", "paris"))

    def assert_refused(self, asked: "Deferred[Any]") -> None:
        """Check that this failed, and why."""
        failure = self.failureResultOf(asked, RemoteProtocolError)
        self.assertIn("sent an invalid name or address", str(failure.value))

    def test_a_welcome_with_a_name_that_is_not_printable_is_refused(self) -> None:
        """As on the native connection."""
        for member in ("instance", "server_name", "address"):
            for text in ("a\x1b[2J", "\u202e", "x" * 1_001):
                self.assert_refused(self.connect(**{member: text}))

    def test_addresses_of_other_replicas_that_are_not_printable_end_the_connection(self) -> None:
        """Both answers name them: that to a subscription, and that to an acknowledgement."""
        for is_subscribed in (True, False):
            conversation = self.successResultOf(self.connect(serial=9, peers=["http://b:1\x1b[2J"]))
            self.addCleanup(conversation.close)
            if is_subscribed:
                conversation.subscribe(Subscribe(history=self.log.history, position=self.log.position))
                self.successResultOf(Deferred.fromCoroutine(conversation.next()))
            else:
                conversation.acknowledge(self.log.position, 0)
                conversation._acknowledge_tick()

            self.assert_refused(Deferred.fromCoroutine(conversation.next()))


class CommandsTests(CopiesCase):
    """What replicas forward over HTTP."""

    def test_a_command_is_taken_once(self) -> None:
        """Whoever lost the answer may ask again."""
        heard: list[Any] = []
        self.publisher.follower_commands.subscribers[FederationAck].append(heard.append)
        said = [[7, "FEDERATION_ACK sender1 17"], [8, "FEDERATION_ACK sender1 18"]]
        answers = [self.say("POST", "/v1/commands", origin="copy-1", commands=said) for _ in range(2)]

        self.assertEqual([{"number": 8, "since": 7}] * 2, [answer.json() for answer in answers])
        self.assertEqual([17, 18], [one.token for one in heard])

    def test_an_origin_without_a_name_is_refused(self) -> None:
        """Nothing could be told apart."""
        answer = self.say("POST", "/v1/commands", origin="two words", commands=[])

        self.assertEqual((400, "bad_request"), (answer.status, answer.json()["error"]))
