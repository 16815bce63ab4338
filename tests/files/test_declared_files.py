"""Rows of declared streams that refer to files: these are kept, fetched, and let go with their rows."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from synrepl.errors import ConfigError, RowError
from synrepl.files.files import Files
from synrepl.files.names import NamedFile, reference
from synrepl.streams.declaration import file_columns, stream_of
from synrepl.streams.declared import StreamBody
from synrepl.streams.stream import Stream
from synrepl.wire.dialect import NEWEST
from tests.files.builders import checksum
from tests.files.setup import FilesCase, missing

A, B, C = (checksum(name.encode()) for name in "abc")
COLUMNS = {"name": "str", "version": "str", "archive": "file", "log": "file?"}


def declared(key: Any = ("name", "version"), **more: Any) -> Stream[Any]:
    """The stream `packages`."""
    return stream_of(StreamBody(name="packages", key=list(key), columns=COLUMNS, **more).declaration())


def ref(sha256: str, size: int = 1) -> dict[str, Any]:
    """What a row says of a file."""
    return {"sha256": sha256, "size": size}


class DeclaredFilesTests(FilesCase):
    """A package index: a row has an archive, and may have a log of its tests."""

    def opened(self, stream: Stream[Any] | None = None, **options: Any) -> Files:
        """The files of a daemon that knows the stream."""
        streams = {"packages": stream or declared()}
        files = self.started(find_stream=streams.get, **options)
        files.stream_added(streams["packages"])
        return files

    def put(self, *row: Any) -> None:
        """A fact of one row."""
        self.log.commit(("packages", [list(row)]))

    def names(self, files: Files) -> list[str]:
        """What is listed to users."""
        return [one.name for one in self.wait(ensureDeferred(files.names_after("", 99, "")))]

    def test_a_row_refers_to_files_until_it_is_replaced(self) -> None:
        files = self.opened(replica=False)
        self.put("twisted", "24.3", ref(A), ref(B))
        self.put("klein", "1", ref(A), None)
        self.assertEqual(
            [
                ('packages ["twisted","24.3"] archive', A),
                ('packages ["twisted","24.3"] log', B),
                ('packages ["klein","1"] archive', A),
            ],
            missing(files),
        )

        self.put("twisted", "24.3", ref(C), None)
        self.assertEqual(
            [('packages ["klein","1"] archive', A), ('packages ["twisted","24.3"] archive', C)],
            missing(files),
        )

    def test_rows_without_a_key_refer_to_theirs_for_ever(self) -> None:
        files = self.opened(declared(key=()), replica=False)
        self.put("twisted", "24.3", ref(A), None)
        self.put("twisted", "24.3", ref(B), None)

        self.assertEqual([A, B], [sha256 for _, sha256 in missing(files)])

    def test_a_long_key_is_shortened(self) -> None:
        """Two that begin alike stay two."""
        files = self.opened(replica=False)
        for end in "12":
            self.put("x" * 5_000 + end, "1", ref(A), None)

        names = [name for name, _ in missing(files)]
        self.assertEqual(2, len(set(names)))
        self.assertLess(max(map(len, names)), 400)

    def test_their_files_are_fetched(self) -> None:
        a = self.upstream_has(b"a")
        files = self.opened()
        self.put("twisted", "24.3", ref(a), None)
        self.clock.pump([0.1] * 20)

        self.assertEqual([], missing(files))
        self.assertTrue(self.store.has(a))

    def test_their_keys_are_for_those_who_see_the_stream(self) -> None:
        """A key for `files` reads the bytes, and not the rows of other streams."""
        files = self.opened()
        self.put("twisted", "24.3", ref(A), None)
        self.say(("one", B))
        self.clock.advance(3)

        names = [
            [one["name"] for one in files.status(*sees)["failing"]]
            for sees in ((), ({"files"}.__contains__,))
        ]

        self.assertEqual([['packages ["twisted","24.3"] archive', "one"], ["one"]], names)

    def test_they_are_no_names_for_users(self) -> None:
        """Whatever names these give: the two are apart."""
        files = self.opened(replica=False)
        self.put("twisted", "24.3", ref(A), None)
        self.say(("one", B), ("\x00", C), ("\x00\x03", C))

        self.assertEqual(["\x00", "\x00\x03", "one"], self.names(files))
        self.assertIsNone(self.wait(ensureDeferred(files.find('packages ["twisted","24.3"] archive'))))

    def test_a_name_takes_no_file_from_a_row(self) -> None:
        """Older logs may have names that begin as references do, and older releases took them for these."""
        name = reference("packages", ("twisted", "24.3"), "archive")
        files = self.opened(replica=False)
        self.put("twisted", "24.3", ref(A), None)
        self.say((name, None), ("\x00\x01other", C))
        self.say((name, B))
        known = [('packages ["twisted","24.3"] archive', A)]
        self.assertEqual(known, missing(files))
        self.assertIsNone(self.wait(ensureDeferred(files.find(name))))

        # As such a release left its index.
        rows = [NamedFile(name, None, None, 2), NamedFile(name, B, 99, 3)]
        files._queue.note(rows, files._names.progress)
        self.wait(files.stop())
        with closing(sqlite3.connect(self.directory / "queue.db")) as database, database:
            database.execute("DROP TABLE sums")
            database.execute("UPDATE notes SET value = rtrim(rtrim(value, '2')) WHERE key = 'seen'")
        streams = {"packages": declared()}
        files = self.started(find_stream=streams.get, replica=False, streams=[declared()])

        self.assertEqual(known, missing(files))

    def test_a_file_that_is_also_named_stays_when_the_row_goes(self) -> None:
        files = self.opened(replica=False)
        self.say(("one", A))
        self.put("twisted", "24.3", ref(A), None)
        self.put("twisted", "24.3", ref(B), None)

        self.assertEqual({A, B}, {sha256 for _, sha256 in missing(files)})

    def test_a_stream_that_becomes_known_late_is_read_from_its_beginning(self) -> None:
        """As after a join: its facts came with its declaration."""
        streams: dict[str, Stream[Any]] = {}
        files = self.started(find_stream=streams.get, replica=False)
        self.say(("one", B))
        self.put("twisted", "24.3", ref(A), None)
        self.assertEqual([B], [sha256 for _, sha256 in missing(files)])

        streams["packages"] = declared()
        files.stream_added(streams["packages"])

        self.assertEqual([B, A], [sha256 for _, sha256 in missing(files)])

    def test_a_restart_reads_nothing_again(self) -> None:
        files = self.opened(replica=False)
        self.put("twisted", "24.3", ref(A), None)
        self.wait(files.stop())
        reads = self.log.read_count
        streams = {"packages": declared()}
        files = self.started(find_stream=streams.get, replica=False, streams=[declared()])

        self.assertEqual([A], [sha256 for _, sha256 in missing(files)])
        self.assertEqual(0, self.log.read_count - reads)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "archive (item 2)"),
        ("x", "archive (item 2)"),
        ({"sha256": "x", "size": 1}, "archive (item 2)"),
        ({"sha256": A}, "archive (item 2)"),
        ({"sha256": A, "size": -1}, "archive (item 2)"),
    ],
)
def test_what_is_no_reference_is_refused(value: Any, why: str) -> None:
    with pytest.raises(RowError) as refused:
        declared().canonical_fact([["twisted", "24.3", value, None]])

    assert why in str(refused.value)


def test_a_reference_is_written_as_it_is_read() -> None:
    stream = declared()
    fact = stream.canonical_fact([["twisted", "24.3", {"size": 1, "sha256": A}, None]])
    (row,) = stream.decode_many([fact[1:-1]], NEWEST)

    assert row.archive == ref(A)
    assert row.log is None
    assert stream.files == ("archive", "log")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"key": ["archive"]}, "can hold objects, which no key can"),
        ({"kind": "ephemeral"}, "column archive is a file, which facts in memory cannot keep"),
    ],
)
def test_a_declaration_that_cannot_keep_files_is_refused(body: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        StreamBody(name="packages", columns=COLUMNS, **body).declaration()


def test_only_columns_of_files_are_files() -> None:
    assert file_columns(StreamBody(name="p", columns={"a": "json", "b": "str"}).declaration()) == ()
    assert file_columns(StreamBody(name="p").declaration()) == ()
