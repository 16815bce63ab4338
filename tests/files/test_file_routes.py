"""Files by checksum, over HTTP."""

import errno
import os
from typing import Any
from unittest import mock
from urllib.parse import quote, unquote

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from synrepl.errors import NotConnected
from synrepl.files import uploads
from synrepl.files.store import Spool, StoredFile
from synrepl.http_api.request_errors import HttpError
from synrepl.replication.serving.read_gate import ReadGate
from tests.files.builders import checksum
from tests.files.site import DATA, PLACE, SHA, FilesSiteCase, Upstream
from tests.http.builders import Answer


class PutTests(FilesSiteCase):
    """Bringing a file."""

    def test_a_new_file_is_made_and_a_known_one_is_not(self) -> None:
        """Bringing it again does no harm."""
        answers = [self.put(DATA), self.put(DATA)]

        self.assertEqual([201, 200], [answer.status for answer in answers])
        self.assertEqual({"sha256": SHA, "size": len(DATA)}, answers[0].json())
        self.assertEqual(f'"{SHA}"', answers[0].headers["etag"])
        self.assertEqual([f"sha256/{SHA[:2]}/{SHA[2:]}"], self.everything())

    def test_an_empty_file_can_be_brought(self) -> None:
        """With and without a word about its length."""
        position = f"/v1/files/sha256/{checksum(b'')}"

        self.assertEqual(201, self.ask("PUT", position).status)
        self.assertEqual(200, self.ask("PUT", position, b"", "Content-Length: 0").status)
        self.assertEqual((200, b""), (self.get(position).status, self.get(position).body))

    def test_a_header_that_is_not_utf_8_asks_for_nothing(self) -> None:
        """It was answered with 500, and a traceback was logged."""
        self.put(DATA)
        for header in (b"If-None-Match", b"If-Range", b"Range"):
            talk = self.talk()
            talk.say(b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b: \xff\r\n\r\n" % (PLACE.encode(), header))

            self.assertEqual((200, DATA), (talk.answer().status, talk.answer().body), header)
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_wrong_checksum_is_told_and_nothing_is_kept(self) -> None:
        """With both, so that people see which end is wrong."""
        answer = self.put(DATA, checksum(b"else"))

        self.assertEqual((400, "checksum_mismatch"), (answer.status, answer.json()["error"]))
        self.assertEqual((checksum(b"else"), SHA), (answer.json()["expected"], answer.json()["found"]))
        self.assertEqual([], self.everything())

    def test_an_invalid_checksum_is_refused(self) -> None:
        """Capitals included: one file has one address."""
        for name in (SHA.upper(), SHA[1:], "x" * 64, "%61" + SHA[1:] if SHA[0] == "a" else "..%2f" + SHA[5:]):
            self.assertIn(self.put(DATA, name).status, {400, 404}, name)
        self.assertEqual([], self.everything())

    def test_a_body_in_chunks_is_streamed_to_the_disk(self) -> None:
        """It is there before the body ends."""
        talk = self.talk()
        talk.say(f"PUT {PLACE} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        talk.say(b"1f4\r\n" + DATA[:500] + b"\r\n")
        (path,) = self.directory.glob("incoming/*")

        self.assertEqual(DATA[:500], path.read_bytes())
        talk.say(b"1f4\r\n" + DATA[500:] + b"\r\n0\r\n\r\n")

        self.assertEqual(201, talk.answer().status)

    def test_nothing_remains_of_a_client_that_goes_away(self) -> None:
        """Wherever in the body that was."""
        for sent in (0, 1, 500, len(DATA) - 1):
            talk = self.talk()
            talk.say(self.request("PUT", PLACE, DATA)[: -len(DATA) + sent])
            talk.leave()

            self.assertEqual([], self.everything())

    def test_nothing_remains_of_a_client_that_goes_away_before_the_answer(self) -> None:
        """All of it came, and the disk is not done with it."""
        keep = self.files.keep
        free: Deferred[None] = Deferred()

        async def slow(spool: Spool, sha256: str) -> bool:
            await free
            return await keep(spool, sha256)

        talk = self.talk()
        with mock.patch.object(self.files, "keep", slow):
            talk.say(self.request("PUT", PLACE, DATA))
            self.assertEqual(1, len(self.everything()))

            talk.leave()

        self.assertEqual([], self.everything())

    def test_too_much_is_refused_before_it_comes(self) -> None:
        """A bound of its own, as files are bigger than facts."""
        self.site = self.make_site(max_body_bytes=10, max_file_bytes=len(DATA))
        self.assertEqual(201, self.put(DATA).status)

        self.assertEqual(413, self.put(DATA + b"!").status)
        talk = self.talk()
        talk.say(f"PUT {PLACE} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        talk.say(b"3e9\r\n" + DATA + b"!\r\n")

        self.assertEqual(413, talk.answer().status)
        self.assertEqual(1, len(self.everything()))

    def test_a_full_disk_is_told_before_the_rest_comes(self) -> None:
        """There would be no use in sending it."""
        talk = self.talk()
        with mock.patch("os.pwrite", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
            talk.say(self.request("PUT", PLACE, DATA)[:-500])

        self.assertEqual((507, "disk_full"), (talk.answer().status, talk.answer().json()["error"]))
        self.assertEqual([], self.everything())

    def test_a_disk_that_is_full_at_the_last_moment(self) -> None:
        """The answer must not be that all is well."""
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
            answer = self.put(DATA)

        self.assertEqual(507, answer.status)
        self.assertEqual([], self.everything())

    def test_who_may_not_ask_may_not_write_either(self) -> None:
        """Not even to a place from where it is removed again."""
        self.site = self.make_site(secret="sesame")

        with mock.patch.object(self.files, "receive", side_effect=AssertionError("it was received")):
            self.assertEqual(401, self.put(DATA).status)
        self.assertEqual(201, self.put(DATA, None, "Authorization: Bearer sesame").status)

    def test_a_replica_brings_it_to_its_upstream_as_well(self) -> None:
        """There the others look for it; the answer comes when it is there."""
        upstream = Upstream()
        self.replica(upstream)

        self.assertEqual(201, self.put(DATA).status)
        self.assertEqual([(SHA, DATA, 1)], upstream.sent)
        self.assertEqual([f"sha256/{SHA[:2]}/{SHA[2:]}"], self.everything())

    def test_an_upstream_that_does_not_take_it_is_named(self) -> None:
        """What was brought here stays: it may be all that there is."""
        upstream = Upstream()
        self.replica(upstream)
        upstream.refuses = [
            NotConnected("nobody is there"),
            HttpError(url="http://u", status=503, code="upstream_unreachable", message="no primary"),
            HttpError(url="http://u", status=503, code="starting", message="it starts"),
            HttpError(url="http://u", status=507, code="disk_full", message="full"),
        ]

        answers = [self.put(DATA) for _ in range(5)]

        self.assertEqual([503, 503, 503, 502, 200], [answer.status for answer in answers])
        codes = [answer.json()["error"] for answer in answers[:4]]
        self.assertEqual(
            ["upstream_unreachable", "upstream_unreachable", "upstream_away", "upstream_refused"], codes
        )
        self.assertEqual(["1", "1", "1"], [answer.headers["retry-after"] for answer in answers[:3]])
        self.assertIs(False, answers[3].json()["retryable"])

    def test_a_replica_that_knows_no_address_of_its_upstream_does_not_say_that_it_is_stored(self) -> None:
        """The client would name it, and the primary would lack the bytes; it never fetches from a replica."""
        is_primary = False
        self.replica(None, is_primary=lambda: is_primary)

        refused = self.put(DATA)
        is_primary = True
        promoted = self.put(DATA)

        self.assertEqual((503, "upstream_unreachable"), (refused.status, refused.json()["error"]))
        self.assertIn("no usable address of the upstream's HTTP API", refused.json()["message"])
        self.assertEqual([f"sha256/{SHA[:2]}/{SHA[2:]}"], self.everything())
        self.assertEqual(200, promoted.status)

    def test_a_file_does_not_go_round_in_circles(self) -> None:
        """Replicas of each other would pass it on for ever."""
        self.replica(Upstream())

        answer = self.ask("PUT", f"{PLACE}?hops=9", DATA)

        self.assertEqual((503, "upstream_away"), (answer.status, answer.json()["error"]))

    def test_a_daemon_without_files_says_so(self) -> None:
        """Rather than a fault."""
        self.site = self.make_site(rooms={})

        self.assertEqual([404, 404], [self.put(DATA).status, self.get(PLACE).status])

    def test_the_sender_waits_for_a_slow_disk(self) -> None:
        """Memory is bounded, however big the file."""
        append = self.files.append
        free: Deferred[None] = Deferred()

        async def slow(spool: Spool, data: bytes) -> None:
            await free
            await append(spool, data)

        talk = self.talk()
        request = self.request("PUT", PLACE, DATA)
        with (
            mock.patch.object(uploads, "MAX_BUFFERED_BYTES", 100),
            mock.patch.object(self.files, "append", slow),
        ):
            talk.say(request[:-900])
            self.assertEqual("producing", talk.transport.producerState)
            talk.say(request[-900:-500])
            self.assertEqual("paused", talk.transport.producerState)
            free.callback(None)
            self.assertEqual("producing", talk.transport.producerState)
            talk.say(request[-500:])

        self.assertEqual(201, talk.answer().status)


class GetTests(FilesSiteCase):
    """Getting a file."""

    def setUp(self) -> None:
        super().setUp()
        self.put(DATA)

    def test_the_bytes_come_with_all_that_a_client_may_need(self) -> None:
        """HEAD says the same without them."""
        for method, body in (("GET", DATA), ("HEAD", b"")):
            answer = self.ask(method, PLACE)
            self.assertEqual((200, body), (answer.status, answer.body))
            told = {name: answer.headers[name] for name in ("etag", "content-length", "accept-ranges")}
            self.assertEqual(
                {"etag": f'"{SHA}"', "content-length": str(len(DATA)), "accept-ranges": "bytes"}, told
            )
            self.assertEqual("application/octet-stream", answer.headers["content-type"])

    def test_a_range_is_sent_and_one_outside_refused(self) -> None:
        """As the name says; one that is not there is refused with the size."""
        answer = self.get(PLACE, "Range: bytes=995-")
        self.assertEqual((206, DATA[995:]), (answer.status, answer.body))
        self.assertEqual(
            ("bytes 995-999/1000", "5"), (answer.headers["content-range"], answer.headers["content-length"])
        )

        answer = self.get(PLACE, "Range: bytes=1000-")
        self.assertEqual((416, "bytes */1000"), (answer.status, answer.headers["content-range"]))

    def test_a_range_of_another_version_is_the_whole(self) -> None:
        """If-Range."""
        answers = [self.get(PLACE, "Range: bytes=5-9", f"If-Range: {tag}") for tag in ('"else"', f'"{SHA}"')]

        self.assertEqual([200, 206], [answer.status for answer in answers])

    def test_what_is_known_is_not_sent_again(self) -> None:
        """If-None-Match."""
        answer = self.get(PLACE, f'If-None-Match: "{SHA}"')

        self.assertEqual((304, b"", f'"{SHA}"'), (answer.status, answer.body, answer.headers["etag"]))

    def test_a_copy_of_some_writers_does_not_say_that_nobody_named_a_file(self) -> None:
        """Another writer may have, whose facts are not there."""
        self.publisher.read_gate = ReadGate(lambda: {"filter": '{"writers":["master"]}'})

        found, other = self.get(PLACE), self.get(f"/v1/files/sha256/{checksum(b'else')}")

        self.assertEqual((200, 409, "filtered"), (found.status, other.status, other.json()["error"]))
        self.assertIn("this copy holds only facts of the writer master", other.json()["message"])

    def test_a_file_without_a_name_is_found_only_if_stored(self) -> None:
        """Unless it is: bytes are brought before they are named."""
        other = checksum(b"else")

        answer = self.get(f"/v1/files/sha256/{other}")

        self.assertEqual((404, "no_such_file"), (answer.status, answer.json()["error"]))
        self.assertEqual(400, self.get("/v1/files/sha256/abc").status)
        self.assertEqual(405, self.ask("DELETE", PLACE).status)

    def test_what_was_named_and_not_brought_is_still_to_come(self) -> None:
        """An installer must not take that for never."""
        other = checksum(b"else")
        self.name("x", other)

        answer = self.get(f"/v1/files/sha256/{other}?wait=99")

        self.assertEqual(
            (503, "file_not_here", "1"),
            (answer.status, answer.json()["error"], answer.headers["retry-after"]),
        )

    def test_a_replica_says_why_it_does_not_fetch_a_file(self) -> None:
        """That it was not uploaded is not known there. It is fetched first once an address is known."""
        other = checksum(b"else")
        self.name("x", other)
        self.replica(None, is_primary=lambda: False, rule="lazy")
        self.wait(self.files.find("x"))

        unknown = self.get(f"/v1/files/sha256/{other}?wait=0")
        upstream = Upstream(b"else")
        upstream.comes.callback(None)
        self.wait(self.files.set_source(upstream))
        self.clock.advance(1)

        self.assertEqual((503, "file_not_here"), (unknown.status, unknown.json()["error"]))
        self.assertIn("no usable address of the upstream's HTTP API", unknown.json()["message"])
        self.assertEqual(b"else", self.get(f"/v1/files/sha256/{other}?wait=0").body)

    def test_a_damaged_file_is_not_served(self) -> None:
        """Not a byte of it."""
        self.name("x", SHA)
        path = self.directory / "sha256" / SHA[:2] / SHA[2:]
        for damaged in (b"?" + DATA[1:], DATA[:-1]):
            path.write_bytes(damaged)
            self.clock.advance(61)

            answer = self.get(PLACE)

            self.assertEqual((503, "file_not_here"), (answer.status, answer.json()["error"]))
            self.assertNotIn(DATA[:10], answer.body)
            self.put(DATA)
        self.assertEqual(DATA, self.get(PLACE).body)

    def test_a_slow_reader_does_not_fill_the_memory(self) -> None:
        """Only as much is read as it takes."""
        data = b"x" * 3_000_000
        self.put(data)
        talk = self.talk()
        talk.transport.is_slow = True

        talk.say(self.request("GET", f"/v1/files/sha256/{checksum(data)}"))

        self.assertLess(len(talk.heard), 600_000)
        for _ in range(20):
            if talk.transport.producer is not None:
                talk.transport.producer.resumeProducing()
        self.assertEqual(data, talk.answer().body)

    def test_a_reader_that_goes_away_costs_nothing_more(self) -> None:
        """The file is closed."""
        data = b"x" * 3_000_000
        self.put(data)
        talk = self.talk()
        talk.transport.is_slow = True
        closed: list[Any] = []
        with mock.patch.object(self.files, "release", closed.append):
            talk.say(self.request("GET", f"/v1/files/sha256/{checksum(data)}"))

            talk.protocol.connectionLost(Failure(ConnectionLost()))

        self.assertEqual(1, len(closed))
        closed[0].close()

    def test_a_disk_that_fails_half_way_cuts_the_connection(self) -> None:
        """A short body that ends well would be taken for the whole."""
        read = StoredFile.read

        def failing(file: StoredFile, offset: int, count: int) -> bytes:
            if offset:
                raise OSError(errno.EIO, "broken")
            return read(file, offset, count)

        self.put(b"x" * 600_000)
        talk = self.talk()
        with mock.patch.object(StoredFile, "read", failing):
            talk.say(self.request("GET", f"/v1/files/sha256/{checksum(b'x' * 600_000)}"))

        self.assertTrue(talk.transport.is_aborted)
        talk.leave()
        self.flushLoggedErrors(OSError)


class ReplicaTests(FilesSiteCase):
    """A file that is not here yet."""

    def setUp(self) -> None:
        super().setUp()
        self.upstream = Upstream()
        self.name("x", SHA)

    def test_a_replica_waits_for_a_named_file(self) -> None:
        """With both rules."""
        for rule in ("eager", "lazy"):
            upstream = Upstream()
            self.replica(upstream, rule=rule)
            talk = self.talk()
            talk.say(self.request("GET", PLACE))
            self.assertEqual(b"", talk.heard)

            upstream.comes.callback(None)

            self.assertEqual((200, DATA), (talk.answer().status, talk.answer().body))
            self.store.remove(SHA)

    def test_but_not_for_ever(self) -> None:
        """Ten seconds, or what is asked for, up to five minutes."""
        self.replica(self.upstream)
        for query, limit in (("", 10), ("?wait=3", 3), ("?wait=9999", 300)):
            talk = self.talk()
            talk.say(self.request("GET", PLACE + query))
            self.clock.advance(limit - 0.5)
            self.assertEqual(b"", talk.heard)
            self.clock.advance(0.5)
            self.assertEqual(503, talk.answer().status)
            self.assertEqual("1", talk.answer().headers["retry-after"])
        self.assertEqual(503, self.get(PLACE + "?wait=0").status)
        self.assertEqual(400, self.get(PLACE + "?wait=soon").status)

    def test_wrong_bytes_from_upstream_never_reach_a_reader(self) -> None:
        """They are not kept, and asked for again."""
        self.upstream.data = b"poison" + DATA
        self.replica(self.upstream)
        talk = self.talk()
        talk.say(self.request("GET", PLACE))
        self.upstream.comes.callback(None)
        self.assertEqual(b"", talk.heard)

        self.upstream.data = DATA
        self.clock.advance(1)

        self.assertEqual((200, DATA), (talk.answer().status, talk.answer().body))

    def test_a_damaged_file_is_fetched_again_for_its_reader(self) -> None:
        """Who sees nothing of it but the time it takes."""
        self.upstream.comes.callback(None)
        self.replica(self.upstream)
        path = self.directory / "sha256" / SHA[:2] / SHA[2:]
        stat = path.stat()
        path.write_bytes(b"?" + DATA[1:])
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))

        answer = self.get(PLACE)

        self.assertEqual((200, DATA), (answer.status, answer.body))


class RangeTests(FilesSiteCase):
    """Ranges, over all of it."""

    def test_a_download_can_be_put_together_from_any_pieces(self) -> None:
        """As a client does that is cut again and again."""
        self.put(DATA)

        @settings(max_examples=40, deadline=None)
        @given(st.lists(st.integers(1, 400), min_size=1, max_size=9))
        def together(pieces: list[int]) -> None:
            got = b""
            for piece in pieces:
                if len(got) < len(DATA):
                    answer = self.get(PLACE, f"Range: bytes={len(got)}-{len(got) + piece - 1}")
                    self.assertEqual(206, answer.status)
                    got += answer.body
            if len(got) < len(DATA):
                got += self.get(PLACE, f"Range: bytes={len(got)}-").body
            self.assertEqual(DATA, got)

        together()


class ByNameTests(FilesSiteCase):
    """Files by the names that facts give them."""

    def get_named(self, name: str, *headers: str) -> Answer:
        """GET the file of this name."""
        return self.ask("GET", f"/v1/files/by-name/{name}", b"", *headers)

    def names(self, query: str = "") -> list[str]:
        """The names of a page of the list."""
        return [one["name"] for one in self.ask("GET", f"/v1/files{query}").json()["files"]]

    def test_a_name_gives_the_file_to_which_it_refers_now(self) -> None:
        """A later row gives it to another file, or to none."""
        self.put(DATA)
        self.put(b"other")
        self.name("media/a b.txt", SHA)
        first = self.get_named("media/a%20b.txt")
        self.name("media/a b.txt", checksum(b"other"), 5)
        second = self.get_named("media%2Fa%20b.txt")
        self.name("media/a b.txt", None)
        third = self.get_named("media/a%20b.txt")

        self.assertEqual((200, DATA, f'"{SHA}"'), (first.status, first.body, first.headers["etag"]))
        self.assertEqual((200, b"other"), (second.status, second.body))
        self.assertEqual((404, "no_such_file"), (third.status, third.json()["error"]))
        self.assertIn("media/a b.txt", third.json()["message"])

    def test_an_answer_says_of_which_name_it_is(self) -> None:
        """A proxy that merges slashes has asked for another one."""
        self.put(DATA)
        for name in ("a//b c%", "a/../é", "a"):
            self.name(name, SHA)
            answer = self.get_named(quote(name, safe=""))

            self.assertEqual((200, name), (answer.status, unquote(answer.headers["synrepl-name"])))

    def test_ranges_and_etags_are_those_of_the_checksum(self) -> None:
        """Both ways in send a file in one way."""
        self.put(DATA)
        self.name("a", SHA)

        part = self.get_named("a", "Range: bytes=10-19")
        same = self.get_named("a", f'If-None-Match: "{SHA}"')
        head = self.ask("HEAD", "/v1/files/by-name/a")

        self.assertEqual((206, DATA[10:20]), (part.status, part.body))
        self.assertEqual(f"bytes 10-19/{len(DATA)}", part.headers["content-range"])
        self.assertEqual((304, b""), (same.status, same.body))
        self.assertEqual((200, str(len(DATA))), (head.status, head.headers["content-length"]))

    def test_names_are_listed_by_prefix_in_pages(self) -> None:
        """In the order of their bytes; each page begins after the last name of the one before."""
        for name in ("b/2", "a", "b/1", "b", "c", "b/\u00e4"):
            self.name(name, SHA, 7)

        self.assertEqual(["a", "b", "b/1", "b/2", "b/\u00e4", "c"], self.names())
        self.assertEqual(["b/1", "b/2", "b/\u00e4"], self.names("?prefix=b/"))
        self.assertEqual([], self.names("?prefix=x"))
        page = self.ask("GET", "/v1/files?prefix=b&limit=2").json()
        self.assertEqual({"name": "b", "sha256": SHA, "size": 7, "serial": 4}, page["files"][0])
        self.assertEqual((["b", "b/1"], True), ([one["name"] for one in page["files"]], page["limited"]))
        self.assertEqual(["b/2", "b/\u00e4"], self.names("?prefix=b&after=b/1"))

    def test_a_name_is_looked_up_once_all_names_of_the_log_are_known(self) -> None:
        """The index of names follows the log, and may be behind it; 404 would be a lie."""
        self.put(DATA)
        self.name("a", SHA)
        self.name("b", "0" * 64)
        known, found = self.files._names.wait_for, Deferred[None]()

        async def wait_for(serial: int) -> None:
            await found
            await known(serial)

        with mock.patch.object(self.files._names, "wait_for", wait_for):
            named, listed, missing = self.talk(), self.talk(), self.talk()
            named.say(self.request("GET", "/v1/files/by-name/a"))
            listed.say(self.request("GET", "/v1/files"))
            missing.say(self.request("GET", f"/v1/files/sha256/{'0' * 64}"))
            self.assertEqual([b""] * 3, [named.heard, listed.heard, missing.heard])
            found.callback(None)
            self.clock.advance(1)

        self.assertEqual((200, DATA), (named.answer().status, named.answer().body))
        self.assertEqual(["a", "b"], [one["name"] for one in listed.answer().json()["files"]])
        self.assertEqual("file_not_here", missing.answer().json()["error"])

    def test_a_replica_fetches_what_is_named(self) -> None:
        """As with a checksum: the answer waits for the bytes."""
        self.name("a", SHA)
        upstream = Upstream()
        self.replica(upstream, rule="lazy")
        talk = self.talk()
        talk.say(self.request("GET", "/v1/files/by-name/a"))
        upstream.comes.callback(None)
        self.clock.advance(1)

        self.assertEqual((200, DATA), (talk.answer().status, talk.answer().body))

    def test_a_daemon_without_files_says_so(self) -> None:
        """The names are not known there either."""
        self.site = self.make_site(rooms={})

        for path in ("/v1/files/by-name/a", "/v1/files"):
            self.assertEqual((404, "not_found"), self.refusal(path), path)

    def refusal(self, path: str) -> tuple[int, str]:
        """The status and the code of a GET."""
        answer = self.ask("GET", path)
        return answer.status, answer.json()["error"]

    def test_a_copy_without_the_names_says_so(self) -> None:
        """An empty list would claim that there are no files."""
        self.publisher.read_gate = ReadGate(lambda: {"filter": '{"streams":["events"]}'})

        for path in ("/v1/files/by-name/a", "/v1/files"):
            self.assertEqual((409, "filtered"), self.refusal(path), path)
