"""Bytes on the disk: kept when they are right, served when they are still right."""

import errno
import os
import stat
from typing import Any
from unittest import mock

from synrepl.errors import StorageError
from synrepl.files.store import ChecksumMismatch, Damaged
from synrepl.storage.private_files import DiskFull
from tests.files.builders import DiskCase, checksum, open_verified

DATA = b"some bytes" * 1_000
OTHER = b"others"


class ReceivingTests(DiskCase):
    """Bytes come in."""

    def test_what_is_received_is_under_its_checksum(self) -> None:
        """So that people find it, and so that a directory never has too many names."""
        spool = self.store.receive()
        for at in range(0, len(DATA), 999):
            spool.append(DATA[at : at + 999])

        self.assertEqual(len(DATA), spool.length)
        self.assertTrue(spool.commit(checksum(DATA)))

        self.assertEqual([f"sha256/{checksum(DATA)[:2]}/{checksum(DATA)[2:]}"], self.everything())
        self.assertEqual(DATA, self.path(checksum(DATA)).read_bytes())

    def test_an_empty_file_is_a_file(self) -> None:
        """They do occur."""
        sha256 = self.kept(b"")

        file = open_verified(self.store, sha256)

        assert file is not None
        self.assertEqual((0, b""), (file.size, file.read(0, 10)))
        file.close()

    def test_wrong_bytes_are_not_kept(self) -> None:
        """The error says both checksums."""
        expected, found = checksum(OTHER), checksum(DATA)
        spool = self.store.receive()
        spool.append(DATA)

        with self.assertRaises(ChecksumMismatch) as caught:
            spool.commit(expected)

        self.assertEqual((expected, found), (caught.exception.expected, caught.exception.found))
        self.assertIn(expected, str(caught.exception))
        self.assertIn(found, str(caught.exception))
        self.assertEqual([], self.everything())
        self.assertRaises(StorageError, spool.append, b"more")

    def test_storing_a_known_file_again_is_harmless(self) -> None:
        """Bringing it again does no harm, and heals it if it was damaged."""
        sha256 = self.kept(DATA)
        self.path(sha256).write_bytes(b"damaged")
        spool = self.store.receive()
        spool.append(DATA)

        self.assertFalse(spool.commit(sha256))

        self.assertEqual(DATA, self.path(sha256).read_bytes())

    def test_an_aborted_upload_leaves_nothing(self) -> None:
        """As when a client goes away."""
        spool = self.store.receive()
        spool.append(DATA)

        spool.abort()
        spool.abort()

        self.assertEqual([], self.everything())

    def test_a_restart_sweeps_what_a_kill_left(self) -> None:
        """Downloads that are still wanted can be gone on with."""
        self.store.receive().append(DATA)
        self.store.resume(checksum(DATA), len(DATA)).append(DATA[:5])
        self.store.resume(checksum(OTHER), len(OTHER)).append(OTHER[:5])

        swept = self.make_store().sweep(lambda sha256: sha256 == checksum(DATA))

        self.assertEqual(2, swept)
        self.assertEqual([f"partial/{checksum(DATA)}"], self.everything())

    def test_a_download_is_gone_on_with(self) -> None:
        """What is there is hashed first, in slices."""
        spool = self.store.resume(checksum(DATA), len(DATA))
        self.assertTrue(spool.rehash(100))
        spool.append(DATA[:5_000])
        spool.close()
        again = self.make_store().resume(checksum(DATA), len(DATA))

        done = [again.rehash(2_000) for _ in range(3)]

        self.assertEqual(([False, False, True], 5_000), (done, again.length))
        again.append(DATA[5_000:])
        self.assertTrue(again.commit(checksum(DATA)))
        self.assertEqual([f"sha256/{checksum(DATA)[:2]}/{checksum(DATA)[2:]}"], self.everything())

    def test_a_wrong_download_begins_anew(self) -> None:
        """Or it would be wrong for ever."""
        spool = self.store.resume(checksum(DATA), len(DATA))
        spool.append(OTHER)
        self.assertRaises(ChecksumMismatch, spool.commit, checksum(DATA))

        self.assertEqual(0, self.store.resume(checksum(DATA), len(DATA)).length)

    def test_a_full_disk_is_told_as_such(self) -> None:
        """And what was written of it before can still be used."""
        spool = self.store.resume(checksum(DATA), len(DATA))
        spool.append(DATA[:10])
        with mock.patch("os.pwrite", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
            self.assertRaises(DiskFull, spool.append, DATA[10:])

        spool.append(DATA[10:])

        self.assertTrue(spool.commit(checksum(DATA)))

    def test_a_file_that_cannot_be_synced_is_not_kept(self) -> None:
        """It would be acknowledged and then lost."""
        spool = self.store.receive()
        spool.append(DATA)
        with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "broken")):
            error = self.assertRaises(StorageError, spool.commit, checksum(DATA))

        self.assertIn("broken", str(error))
        self.assertFalse(self.store.has(checksum(DATA)))
        self.assertEqual([], self.everything())

    def test_a_file_is_synced_before_it_has_its_name(self) -> None:
        """Who brought it is told that it is kept: a power cut must not leave an empty file after that."""
        happened: list[str] = []
        synced = os.fsync
        target = self.path(checksum(DATA))

        def sync(descriptor: int) -> None:
            found = os.fstat(descriptor)
            what = "file" if stat.S_ISREG(found.st_mode) else "folder"
            happened.append(f"{what} {'named' if target.exists() else 'unnamed'}")
            synced(descriptor)

        spool = self.store.receive()
        spool.append(DATA)
        target.parent.mkdir(parents=True)
        with mock.patch("os.fsync", sync):
            spool.commit(checksum(DATA))

        self.assertEqual(["file unnamed", "folder named"], happened)

    def test_what_a_write_left_over_is_written_too(self) -> None:
        """The system may take a part of what it is given, as before a disk is full."""
        write = os.pwrite
        spool = self.store.receive()

        with mock.patch("os.pwrite", lambda file, data, at: write(file, data[:700], at)):
            spool.append(DATA)
        spool.commit(checksum(DATA))

        self.assertEqual(DATA, self.path(checksum(DATA)).read_bytes())

    def test_a_daemon_without_files_makes_no_directory(self) -> None:
        """Looking is not making."""
        self.store.sweep(lambda _: True)
        while self.store.count() is not None:
            pass

        self.assertFalse(self.store.has(checksum(DATA)))
        self.assertIsNone(self.store.open(checksum(DATA)))
        self.assertEqual(([], True), self.store.scrub().step(1_000))
        self.store.remove(checksum(DATA))
        self.assertFalse(self.directory.exists())

    def test_only_a_checksum_can_be_a_path(self) -> None:
        """Whoever may upload may not choose where."""
        for name in ("../../etc/passwd", "", "A" * 64, "a" * 63, "a" * 64 + "\n"):
            self.assertRaises(ValueError, self.store.has, name)
            self.assertRaises(ValueError, self.store.resume, name, 1)


class ServingTests(DiskCase):
    """Bytes go out."""

    def test_a_good_file_is_read(self) -> None:
        """From any place on."""
        file = open_verified(self.store, self.kept(DATA))

        assert file is not None
        self.assertEqual(DATA[7:12], file.read(7, 5))
        self.assertEqual(DATA[-3:], file.read(len(DATA) - 3, 100))
        other = file.again()
        file.close()
        file.close()
        self.assertEqual(DATA, other.read(0, len(DATA)))
        self.assertRaises(StorageError, file.read, 0, 1)
        other.close()

    def test_a_bad_file_is_never_served(self) -> None:
        """It is put aside for people to look at, and is missing from then on."""

        def truncate(sha256: str) -> None:
            os.truncate(self.path(sha256), 100)

        def extend(sha256: str) -> None:
            with self.path(sha256).open("ab") as file:
                file.write(b"!")

        def empty(sha256: str) -> None:
            os.truncate(self.path(sha256), 0)

        damages: list[Any] = [self.flip, truncate, extend, empty]
        for number, damage in enumerate(damages):
            with self.subTest(number):
                sha256 = self.kept(DATA + bytes([number]))
                open_verified(self.make_store(), sha256)
                damage(sha256)

                self.assertRaises(Damaged, open_verified, self.store, sha256)

                self.assertIn(f"quarantine/{sha256}", self.everything())
                self.assertFalse(self.store.has(sha256))
                self.assertIsNone(open_verified(self.store, sha256))
        self.assertEqual(len(damages), self.store.quarantined)

    def test_a_disk_that_cannot_read_a_file_has_damaged_it(self) -> None:
        """Nothing better can be said about it."""
        sha256 = self.kept(DATA)
        self.clock.advance(61)

        with mock.patch("os.pread", side_effect=OSError(errno.EIO, "broken")):
            self.assertRaises(Damaged, open_verified, self.store, sha256)

        self.assertFalse(self.store.has(sha256))

    def test_a_passing_trouble_says_nothing_about_the_bytes(self) -> None:
        """Or a busy system would lose its files."""
        sha256 = self.kept(DATA)
        self.clock.advance(61)

        with mock.patch("os.pread", side_effect=OSError(errno.ENOMEM, "no memory")):
            error = self.assertRaises(StorageError, open_verified, self.store, sha256)

        self.assertNotIsInstance(error, Damaged)
        self.assertTrue(self.store.has(sha256))

    def test_a_hot_file_is_not_hashed_each_time(self) -> None:
        """For a minute; a file that changed in the meantime is."""
        sha256 = self.kept(DATA)
        with mock.patch("os.pread", side_effect=AssertionError("it was read")):
            file = open_verified(self.store, sha256)
            assert file is not None
            file.close()
        self.clock.advance(61)
        with mock.patch("os.pread", side_effect=AssertionError("it was read")):
            self.assertRaises(AssertionError, open_verified, self.store, sha256)
        file = open_verified(self.store, sha256)
        assert file is not None
        file.close()

        stat = self.path(sha256).stat()
        self.path(sha256).write_bytes(DATA[:-1] + b"?")
        os.utime(self.path(sha256), ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))

        self.assertRaises(Damaged, open_verified, self.store, sha256)

    def test_a_check_takes_slices(self) -> None:
        """Other work comes in between."""
        sha256 = self.kept(DATA)
        self.clock.advance(61)
        file = self.store.open(sha256)
        assert file is not None

        self.assertEqual([False, True], [file.verify(6_000), file.verify(6_000)])

        self.assertEqual(len(DATA), file.size)
        file.close()

    def test_a_file_that_took_the_place_of_a_bad_one_stays(self) -> None:
        """It was brought anew while the bad one was looked through."""
        sha256 = self.kept(DATA)
        self.flip(sha256)
        file = self.store.open(sha256)
        assert file is not None
        self.assertFalse(file.verify(10))
        self.kept(DATA)

        self.assertRaises(Damaged, file.verify, 1_000_000)

        self.assertTrue(self.store.has(sha256))


class CountingTests(DiskCase):
    """How much there is."""

    def counted(self) -> tuple[list[str], int, int]:
        """What is counted, after a restart."""
        store = self.make_store()
        found: list[str] = []
        while (part := store.count()) is not None:
            found += part
        return sorted(found), store.stored, store.stored_bytes

    def test_stored_files_are_counted(self) -> None:
        """Strange files among them are not ours."""
        names = sorted([self.kept(DATA), self.kept(OTHER)])
        self.path(names[0]).with_name("README").write_text("mine")

        self.assertEqual((names, 2, len(DATA) + len(OTHER)), self.counted())

    def test_what_comes_and_goes_is_counted_on(self) -> None:
        """Also while the count is going on."""
        first = self.kept(DATA)
        while self.store.count() is not None:
            pass
        second = self.kept(OTHER)
        self.kept(OTHER)
        self.assertEqual((2, len(DATA) + len(OTHER)), (self.store.stored, self.store.stored_bytes))

        self.store.remove(second)
        self.flip(first)
        self.assertRaises(Damaged, open_verified, self.store, first)

        self.assertEqual((0, 0), (self.store.stored, self.store.stored_bytes))


class ScrubbingTests(DiskCase):
    """Files are looked through although nobody asks for them."""

    def test_a_round_finds_what_is_bad(self) -> None:
        """In slices, however small."""
        good = [self.kept(bytes([number]) * 10_000) for number in range(20)]
        bad = sorted(good[3:6])
        for sha256 in bad:
            self.flip(sha256)
        scrub = self.store.scrub()

        found: list[str] = []
        steps, is_done = 0, False
        while not is_done:
            some, is_done = scrub.step(7_000)
            found += some
            steps += 1

        self.assertEqual(bad, found)
        self.assertGreater(steps, 20)
        self.assertEqual(3, self.store.quarantined)
        self.assertEqual("", scrub.position)

    def test_a_round_goes_on_where_it_was(self) -> None:
        """A daemon that is restarted daily must not look at the same files for ever."""
        names = sorted(self.kept(bytes([number])) for number in range(20))
        scrub = self.store.scrub()
        scrub.step(10 * 4_096)
        scrub.close()
        self.flip(names[0])
        self.flip(names[15])

        found, is_done = self.make_store().scrub(scrub.position).step(10**9)

        self.assertEqual(names[9], scrub.position)
        self.assertEqual(([names[15]], True), (found, is_done))
