"""Streams of one's own over HTTP, and to followers of each release: what is declared, written and sent."""

import json
from typing import Any

from synrepl.base.access import Access, Key, Keyring, Right
from synrepl.errors import ConfigError
from synrepl.replication.declared_streams import MAX_EPHEMERAL, MAX_STREAMS, DeclaredStreams
from synrepl.streams.declared import DaemonStreams, StreamBody
from synrepl.streams.origin import Origin
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire.commands import Replicate
from synrepl.wire.dialect import CURRENT, LEGACY, NEWEST, Dialect
from tests.http.builders import Answer, SiteCase
from tests.memory_engine import FaultyEngine

PACKAGES: dict[str, Any] = {
    "name": "packages",
    "key": ["name"],
    "kind": "kept",
    "columns": {"name": "str", "version": "str"},
    "writers": [],
}


class Follower:
    """A follower's connection: what it was sent."""

    def __init__(self, case: "StreamCase", dialect: Dialect) -> None:
        self.sent = b""
        self.failed = ""
        self.session = case.publisher.attach(self)
        self.session.dialect_known(dialect)

    def write(self, data: bytes) -> None:
        self.sent += data

    def fail(self, why: str) -> None:
        self.failed = why

    def send(self, command: Any) -> None:
        raise AssertionError(command)

    def pause_reading(self) -> None:
        raise AssertionError

    resume_reading = established = pause_reading


class StreamCase(SiteCase):
    """Declarations, and a package."""

    def declare(self, **more: Any) -> Answer:
        """POST a declaration of `packages`."""
        return self.ask("POST", "/v1/streams", json.dumps({**PACKAGES, **more}).encode())

    def put(self, version: str, **more: Any) -> Answer:
        """Append a row, and let the publisher send it."""
        answer = self.post("packages", [["twisted", version]], **more)
        self.clock.advance(1)
        return answer

    def later(self) -> DeclaredStreams:
        """What another run, or a replica, reads from this log."""
        later = DeclaredStreams(self.log, DaemonStreams(StreamTable.default()), instance="other")
        self.wait(later.load())
        return later


class DeclaringTests(StreamCase):
    """Over HTTP."""

    def test_a_stream_is_created_once(self) -> None:
        """An equal declaration changes nothing."""
        self.assertEqual({"stream": PACKAGES, "created": True}, self.declare().json())
        self.assertEqual({"stream": PACKAGES, "created": False}, self.declare(key="name").json())
        self.assertEqual({"streams": [PACKAGES]}, self.get("/v1/streams").json())
        self.assertEqual(1, self.log.head.serial)
        self.assertIn("packages", self.get("/v1/status").json()["streams"])

    def test_another_declaration_is_refused(self) -> None:
        """It says what differs."""
        self.declare()
        answer = self.declare(kind="ephemeral", writers=["w"])

        self.assertEqual((409, "declared_otherwise"), (answer.status, answer.json()["error"]))
        self.assertEqual(
            "stream packages is declared already,"
            ' with kind "kept" and not "ephemeral", writers [] and not ["w"]',
            answer.json()["message"],
        )

    def test_rows_are_written_and_read(self) -> None:
        """As those of any stream."""
        self.assertEqual(404, self.put("24.3").status)
        self.declare()
        self.assertEqual(200, self.put("24.3").status)

        self.assertIn('["twisted","24.3"]', self.get("/v1/changelog?streams=packages").body.decode())
        self.assertIn('["twisted","24.3"]', self.get("/v1/streams/packages/rows?writer=master").body.decode())

    def test_a_row_that_does_not_fit_is_refused(self) -> None:
        """By the declared columns."""
        self.declare()
        answer = self.post("packages", [["twisted", 24]])

        self.assertEqual((400, "bad_row"), (answer.status, answer.json()["error"]))
        self.assertIn("version (item 1): Expected `str`, got `int`", answer.json()["message"])

    def test_only_declared_writers_write(self) -> None:
        """Whoever posts."""
        self.declare(writers=["index"])

        self.assertEqual(200, self.put("1", writer="index").status)
        refused = self.put("2")
        self.assertEqual((409, "brought_elsewhere"), (refused.status, refused.json()["error"]))
        self.assertIn("only index may write it", refused.json()["message"])

    def test_declarations_are_not_written_by_hand(self) -> None:
        """A posted row could contradict another one."""
        answer = self.post("declarations", [["x", [], "kept", None, []]])

        self.assertEqual(409, answer.status)
        self.assertIn("synrepl streams create", answer.json()["message"])

    def test_there_is_a_limit(self) -> None:
        """Of ephemeral ones it is lower: what is held of them must fit a block."""
        for number in range(MAX_EPHEMERAL):
            self.assertEqual(200, self.declare(name=f"e{number}", kind="ephemeral").status)
        self.assertIn("4 of them ephemeral", self.declare(name="more", kind="ephemeral").json()["message"])
        for number in range(MAX_STREAMS - MAX_EPHEMERAL):
            self.assertEqual(200, self.declare(name=f"k{number}").status)
        self.assertIn("at most 100", self.declare(name="more").json()["message"])
        self.assertEqual(200, self.declare(name="k1").status)

    def test_a_key_for_other_streams_neither_declares_nor_sees_it(self) -> None:
        """Nor does one without the right to administer declare."""
        self.declare()
        keys = Keyring(
            keys=[
                Key(name="a", secret="one", streams=frozenset({"x"})),
                Key(name="b", secret="two", rights=frozenset(Right) - {Right.ADMINISTER}),
            ]
        )
        self.site = self.make_site(keys=keys)

        asked = [
            self.ask("POST", "/v1/streams", json.dumps(PACKAGES).encode(), f"Authorization: Bearer {key}")
            for key in ("one", "two")
        ]
        self.assertEqual([403, 403], [answer.status for answer in asked])
        self.assertEqual([], self.get("/v1/streams", "Authorization: Bearer one").json()["streams"])

    def test_an_ephemeral_stream_is_in_memory(self) -> None:
        """Its facts have no serial."""
        self.declare(kind="ephemeral")

        self.assertEqual(200, self.put("1").status)
        self.assertEqual(1, self.log.head.serial)
        self.assertEqual({"master": 1}, self.log.positions("packages"))

    def test_the_log_has_it(self) -> None:
        """A later run and a replica find it there, and declare it no other way."""
        self.declare()
        self.declare(name="seen", kind="ephemeral")

        later = self.later()
        self.assertEqual(["packages", "seen"], list(later.declared))
        self.assertEqual(False, self.wait(later.declare(StreamBody(**PACKAGES).declaration())))
        refused = self.failureResultOf(
            _deferred(later.declare(StreamBody(name="packages").declaration())), ConfigError
        )
        self.assertIn("declared already", str(refused.value))

    def test_of_two_declarations_the_newest_counts(self) -> None:
        """Every copy takes the same one, also a copy that was trimmed: that has only the newest."""
        self.declare()
        fact = b'[["packages",[],"kept",null,[]]]'
        self.wait(self.log.append("declarations", "master", [fact], origin=Origin.DAEMON))

        for one in (self.declared, self.later()):
            self.assertEqual([], one.declared["packages"].key)
            self.assertEqual("packages", self.table["packages"].name)

    def test_another_log_has_other_streams(self) -> None:
        """A replica joined again: what the new log lacks is gone, another declaration replaces the former."""
        self.declare()
        self.declare(name="gone")
        self.engine = FaultyEngine()
        self.log = self.make_log()
        self.wait(self.log.start())
        self.declared._log = self.log
        other = DeclaredStreams(self.log, DaemonStreams(StreamTable.default()), instance="other")
        self.log.subscribe(other.committed)
        self.wait(other.declare(StreamBody(name="packages", key="id").declaration()))
        self.wait(self.declared.load())

        self.assertEqual({"packages": other.declared["packages"]}, self.declared.declared)
        self.assertNotIn("gone", self.table)


class SendingTests(StreamCase):
    """To followers of Synapse's releases."""

    def test_who_does_not_name_it_does_not_get_it(self) -> None:
        """A real process would end the connection at a stream that it does not know."""
        self.declare()
        followers = [Follower(self, dialect) for dialect in (LEGACY, CURRENT, NEWEST)]
        followers[0].session.received([Replicate(stream="ALL", token=None)])
        for follower in followers[1:]:
            follower.session.received([Replicate()])
        self.put("24.3")

        for follower in followers:
            self.assertIn(b"POSITION", follower.sent)
            self.assertNotIn(b"packages", follower.sent)
            self.assertNotIn(b"declarations", follower.sent)

    def test_a_declared_stream_is_sent_to_followers_that_request_it(self) -> None:
        """Over the same port; the others still do not."""
        self.declare()
        other = Follower(self, CURRENT)
        follower = Follower(self, CURRENT)
        follower.session.received([Replicate(text="+packages +nonsense")])
        old = Follower(self, LEGACY)
        old.session.received([Replicate(stream="packages", token=0)])
        self.put("24.3")

        self.assertIn(b'RDATA packages master 1 ["twisted","24.3"]\n', follower.sent)
        self.assertIn(b"POSITION packages master 0 0\n", follower.sent)
        self.assertIn(b'RDATA packages 1 ["twisted", "24.3"]\n', old.sent)
        self.assertEqual(b"", other.sent)

    def test_who_named_it_too_early_gets_it_once_it_is_there(self) -> None:
        """A worker may start before the operator declares its stream."""
        follower = Follower(self, CURRENT)
        follower.session.received([Replicate(text="+packages")])
        self.declare()
        self.put("24.3")

        self.assertIn(b"POSITION packages master 0 0\n", follower.sent)
        self.assertIn(b"RDATA packages master 1", follower.sent)

    def test_names_are_bounded(self) -> None:
        """A follower cannot fill the memory with names that no stream has."""
        self.declare()
        follower = Follower(self, CURRENT)
        follower.session.received([Replicate(text="+" + "x" * 10_000 + " +packages")])
        follower.session.received([Replicate(text=" ".join(f"+x{number}" for number in range(10_000)))])
        self.put("24.3")

        self.assertEqual({"packages"}, follower.session._named)
        self.assertIn(b"RDATA packages master 1", follower.sent)

    def test_a_key_for_other_streams_does_not_get_it(self) -> None:
        """Naming it is no right to see it."""
        self.declare()
        follower = Follower(self, CURRENT)
        follower.session.access = Access(streams=frozenset({"events"}))
        follower.session.dialect_known(CURRENT)
        follower.session.received([Replicate(text="+packages")])
        self.put("24.3")

        self.assertNotIn(b"packages", follower.sent)

    def test_redis_never_gets_it(self) -> None:
        """Even if it were asked to: Synapse's processes would disconnect."""
        self.declare()
        follower = Follower(self, CURRENT)
        writes = {
            Writer("packages", "master"),
            Writer("declarations", "master"),
            Writer("receipts", "master"),
        }
        reader = self.publisher.join_channel(follower, writes)
        reader.push_since(0)
        reader.send_positions()
        self.put("24.3")
        self.receipts(1)
        self.clock.advance(1)

        self.assertIn(b"RDATA receipts", follower.sent)
        self.assertNotIn(b"packages", follower.sent)
        self.assertNotIn(b"declarations", follower.sent)


def _deferred(work: Any) -> Any:
    from twisted.internet.defer import ensureDeferred

    return ensureDeferred(work)
