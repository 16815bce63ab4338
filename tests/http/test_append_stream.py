"""A stream of appends: lines in, lines out, in order, while the request is still arriving."""

import json
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from synrepl.base.history import Appended
from synrepl.transports.http import append_stream_routes as stream_module
from synrepl.transports.http.http_channel import PROGRESS_SECONDS
from synrepl.transports.http.large_body import LARGE_BYTES
from synrepl.wire.codec import LineBuffer
from tests.http.builders import BROKEN, SiteCase, Talk, receipt

PATH = "/v1/appends"
NDJSON = "Content-Type: application/x-ndjson"


def line(user: str = "@ada:hs.example", *, stream: str = "push_rules", **more: Any) -> bytes:
    row = receipt(user) if stream == "receipts" else [user]
    return json.dumps({"stream": stream, "facts": [[row]], **more}).encode() + b"\n"


def part(data: bytes) -> bytes:
    """A piece of a body in chunks."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class AppendStreamCase(SiteCase):
    """A request whose body arrives piece by piece."""

    def begin(self, path: str = PATH, *headers: str) -> Talk:
        talk = self.talk()
        given = "".join(f"{header}\r\n" for header in ("Host: localhost", NDJSON, *headers))
        talk.say(f"POST {path} HTTP/1.1\r\n{given}Transfer-Encoding: chunked\r\n\r\n".encode())
        self.clock.advance(0)
        return talk

    def say(self, talk: Talk, data: bytes) -> None:
        talk.say(part(data))
        for _ in range(5):
            self.clock.advance(0)

    def end(self, talk: Talk) -> None:
        talk.say(b"0\r\n\r\n")
        for _ in range(5):
            self.clock.advance(0)

    def serials(self, talk: Talk) -> list[int | str]:
        """The first serial of each answer, or the error code."""
        return [answer.get("error") or answer["first_serial"] for answer in talk.answer().lines()]


class AppendStreamTests(AppendStreamCase):
    """What a writer sees that does not wait."""

    def test_each_line_is_answered_before_the_next_one_comes(self) -> None:
        """The answer begins before the body ends."""
        talk = self.begin()
        self.say(talk, line("@ada:hs"))
        self.assertEqual([{"epoch": 1, "first_serial": 1, "tokens": [1]}], talk.answer().lines())
        self.say(talk, line("@bob:hs", writer="w2"))
        self.assertEqual([1, 2], self.serials(talk))
        self.assertFalse(talk.answer().is_whole)
        self.end(talk)

        answer = talk.answer()
        self.assertTrue(answer.is_whole)
        self.assertEqual((200, "application/x-ndjson"), (answer.status, answer.headers["content-type"]))
        self.assertEqual("no", answer.headers["x-accel-buffering"])
        self.assertEqual(["master", "w2"], [fact.writer for fact in self.engine.facts])

    def test_many_small_pieces_take_turns(self) -> None:
        """A line that does not end came in ten thousand pieces: one turn of 42 seconds."""
        with patch.object(LineBuffer, "receive", autospec=True, return_value=[]) as receive:
            talk = self.begin()
            talk.say(part(b"x") * 1_000)
            in_one_turn = receive.call_count
            self.assertLessEqual(in_one_turn, stream_module.WORK_AT_ONCE)
            self.end(talk)
            # What came meanwhile is taken together.
            self.assertLess(receive.call_count, in_one_turn + 5)
        self.assertTrue(talk.answer().is_whole)

    def test_pieces_of_any_size_are_lines(self) -> None:
        """The last one needs no end."""
        talk = self.begin()
        data = line("@ada:hs") + b"\n" + line("@bob:hs") + line("@eve:hs")[:-1]
        talk.say(b"".join(part(data[at : at + 1]) for at in range(len(data))))
        self.end(talk)
        self.assertEqual([1, 2, 3], self.serials(talk))

    def test_a_line_of_one_byte_too_many_is_refused_with_or_without_its_end(self) -> None:
        """Those before it are appended."""
        for ending in (b"\n", b"", b"\n" + line()):
            with self.subTest(ending=ending), patch.object(stream_module, "MAX_LINE", 200):
                talk = self.begin()
                self.say(talk, line() + b"x" * 201 + ending)
                self.end(talk)
                self.assertEqual("too_large", self.serials(talk)[-1])
                self.assertEqual(2, len(self.serials(talk)))

    def test_the_connection_serves_the_next_request(self) -> None:
        """As after any other request."""
        talk = self.begin()
        self.say(talk, line())
        self.end(talk)
        talk.transport.clear()
        talk.say(self.request("GET", "/v1/changelog"))
        self.clock.advance(0)

        self.assertEqual([1], [fact["serial"] for fact in talk.answer().lines()])

    def test_a_whole_body_and_a_last_line_without_an_end_are_fine(self) -> None:
        """A file is posted so."""
        body = line("@a:hs") + b"\n  \n" + line("@b:hs")[:-1]
        talk = self.talk()
        talk.say(self.request("POST", PATH, body, NDJSON))
        for _ in range(5):
            self.clock.advance(0)

        self.assertEqual([1, 2], self.serials(talk))
        self.assertTrue(talk.answer().is_whole)

    def test_a_line_that_is_refused_does_not_stop_the_others(self) -> None:
        """Its error is in its place."""
        talk = self.begin()
        lines = [
            line("@a:hs"),
            b"{\n",
            line(stream="nonsense"),
            json.dumps({"stream": "push_rules", "facts": [[["@a:hs", 1, 2]]]}).encode() + b"\n",
            json.dumps({"stream": "push_rules", "fact": []}).encode() + b"\n",
            line(writer="two words"),
            line("@b:hs"),
        ]
        self.say(talk, b"".join(lines))
        self.end(talk)

        codes = [1, "bad_json", "unknown_stream", "bad_row", "bad_request", "bad_writer", 2]
        self.assertEqual(codes, self.serials(talk))
        self.assertEqual(2, len(self.engine.facts))

    def test_answers_keep_the_order_of_the_lines(self) -> None:
        """One that is known at once waits for those before it."""
        talk, first, second = self.begin(), Deferred[Appended](), Deferred[Appended]()
        with patch.object(self.log, "append", side_effect=[first, second]):
            self.say(talk, line() + line() + b"{\n")
        told = [self.serials(talk)]
        for serial, appending in ((7, first), (8, second)):
            appending.callback(Appended(1, serial, [serial]))
            self.clock.advance(0)
            told.append(self.serials(talk))

        self.assertEqual([[], [7], [7, 8, "bad_json"]], told)

    def test_a_failing_disk_is_told_line_by_line(self) -> None:
        """And so is its recovery."""
        talk = self.begin()
        self.engine.fail_next(BROKEN)
        self.say(talk, line())
        self.say(talk, line())
        self.end(talk)

        self.assertEqual(["storage_error", 1], self.serials(talk))

    def test_a_key_makes_a_repeated_line_harmless(self) -> None:
        """Whoever lost the answers sends the lines again."""
        for _ in range(2):
            talk = self.begin()
            self.say(talk, line("@a:hs", idempotency_key="1") + line("@b:hs", idempotency_key="2"))
            self.end(talk)
            self.assertEqual([1, 2], self.serials(talk))

        self.assertEqual(2, len(self.engine.facts))

    def test_lines_cut_anywhere_are_the_same_lines(self) -> None:
        """A packet ends wherever it likes."""
        data = b"".join(line(f"@u{number}:hs") for number in range(5))

        @settings(max_examples=40, deadline=None)
        @given(st.lists(st.integers(1, len(data) - 1), max_size=8).map(sorted))
        def check(cuts: list[int]) -> None:
            before = len(self.engine.facts)
            talk = self.begin()
            for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
                if start < stop:
                    self.say(talk, data[start:stop])
            self.end(talk)
            self.assertEqual([before + number for number in range(1, 6)], self.serials(talk))

        check()

    def test_a_long_line_is_decoded_in_a_thread(self) -> None:
        """Nobody else waits for it; those after it keep their order."""
        users = [[[f"@{'x' * 200}{number}:hs"]] for number in range(1 + LARGE_BYTES // 200)]
        long = json.dumps({"stream": "push_rules", "facts": users}).encode() + b"\n"
        api = self.site.resource
        talk = self.begin()
        with patch.object(api, "decode_large", wraps=api.decode_large) as decode:
            self.say(talk, line() + long + line())
            self.end(talk)
            for _ in range(50):
                self.clock.advance(0)

        self.assertEqual([1, 2, 2 + len(users)], self.serials(talk))
        self.assertEqual(1, decode.call_count)

    def test_a_line_that_never_ends_is_refused(self) -> None:
        """Memory is bounded; where the next line begins is not known."""
        self.patch(stream_module, "MAX_LINE", 200)
        talk = self.begin()
        self.say(talk, line() + b"x" * 201)
        self.say(talk, line())

        self.assertEqual([1, "too_large"], self.serials(talk))
        self.assertEqual(1, len(self.engine.facts))
        self.clock.advance(60)
        self.assertTrue(talk.transport.is_aborted)

    def test_no_more_is_read_while_too_many_lines_are_not_answered(self) -> None:
        """A writer that is faster than the disk waits."""
        self.patch(stream_module, "MAX_OPEN", 3)
        talk = self.begin()
        talk.transport.is_slow = True
        talk.transport.full_at = 0
        self.say(talk, b"".join(line(f"@u{number}:hs") for number in range(9)))
        self.assertLess(len(self.engine.facts), 9)
        for _ in range(20):
            if talk.transport.producer is not None:
                talk.transport.producer.resumeProducing()
            self.clock.advance(0)
        self.assertEqual(9, len(self.engine.facts))

    def test_a_client_that_leaves_ends_the_work(self) -> None:
        """What it sent is stored; nothing is logged."""
        talk = self.begin()
        self.say(talk, line())
        talk.leave()
        self.clock.advance(0)

        self.assertEqual(1, len(self.engine.facts))
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_silent_client_is_cut_off_and_an_empty_line_keeps_it(self) -> None:
        """Nobody holds a connection for ever without a word."""
        talk = self.begin()
        for _ in range(5):
            self.clock.advance(PROGRESS_SECONDS - 1)
            self.say(talk, b"\n")
        self.assertFalse(talk.transport.disconnecting)
        self.clock.advance(PROGRESS_SECONDS)
        self.clock.advance(PROGRESS_SECONDS)
        self.assertTrue(talk.transport.disconnecting)

    def test_other_types_of_bodies_are_refused_before_anything_is_read(self) -> None:
        """A page of another site can send those."""
        talk = self.talk()
        talk.say(
            b"POST /v1/appends HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        self.clock.advance(0)
        self.assertEqual(415, talk.answer().status)
        talk.say(part(line()))
        self.clock.advance(0)
        self.assertEqual([], self.engine.facts)
