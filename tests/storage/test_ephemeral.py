"""What memory holds of ephemeral streams, and what it lets go of first."""

from twisted.trial.unittest import SynchronousTestCase

from synrepl.base.history import AppendKey
from synrepl.storage.ephemeral import FACT_BYTES, EphemeralStore, EphemeralStream
from tests.storage.builders import rows


def first_letter(stream: str, row: bytes) -> str | None:
    """The key of a row in these tests: its first letter; rows that begin with a dash have none."""
    letter = row[2:3].decode()
    return None if letter == "-" else letter


class EphemeralTests(SynchronousTestCase):
    """One stream, keyed by the first letter of its rows."""

    def stream(self, room: int = 1000) -> EphemeralStream:
        """A stream with room for this many small facts."""
        return EphemeralStream("typing", epoch=3, key_of=first_letter, max_bytes=room * (FACT_BYTES + 10))

    def held(self, stream: EphemeralStream, after: int = 0) -> list[int]:
        return [fact.token for fact in stream.after(after)]

    def test_tokens_begin_at_one_and_the_epoch_is_the_boot(self) -> None:
        """A follower that saw token 70 before a restart must be able to see that 1 is news."""
        stream = self.stream()

        made = stream.append("w1", [rows("a"), rows("b")], 5) + stream.append("w2", [rows("c")], 6)
        made += stream.append("w1", [rows("d")], 7)

        self.assertEqual(
            [(0, 3, "w1", 0, 1, 5), (0, 3, "w1", 1, 2, 5), (0, 3, "w2", 0, 3, 6), (0, 3, "w1", 2, 4, 7)],
            [(f.serial, f.epoch, f.writer, f.prev_token, f.token, f.committed_at_ms) for f in made],
        )
        self.assertEqual({"w1": 4, "w2": 3}, stream.positions)
        self.assertEqual(made[2:], stream.after(2))

    def test_the_life_of_a_stream_rises_with_each_boot_and_each_reset(self) -> None:
        """Both begin its tokens again: what was acknowledged before counts no more."""
        store = EphemeralStore(["typing"], key_of=None, max_bytes=1_000)
        store.restart(3)
        store.append("typing", "w1", [rows("a")], 5, key=None, checksum="")
        lives = [store.life("typing")]
        store.streams["typing"].reset_writer("w1", 6)
        lives.append(store.life("typing"))
        store.restart(5)
        lives.append(store.life("typing"))

        self.assertEqual(([3, 4, 5], 0), (lives, store.life("receipts")))

    def test_replaced_facts_go_before_older_ones_that_still_count(self) -> None:
        """Who is typing in a quiet room must not be forgotten because of a busy one."""
        stream = self.stream(room=3)

        for text in ("a1", "b1", "b2", "b3", "b4"):
            stream.append("w1", [rows(text)], 0)

        self.assertEqual([1, 4, 5], self.held(stream))

    def test_the_oldest_goes_when_all_still_count(self) -> None:
        """The bound holds whatever the rows are."""
        stream = self.stream(room=3)

        for text in "abcde":
            stream.append("w1", [rows(text)], 0)

        self.assertEqual([3, 4, 5], self.held(stream))

    def test_a_fact_counts_until_all_its_rows_are_replaced(self) -> None:
        """Facts are atomic: half of one cannot be dropped."""
        stream = self.stream(room=3)

        for texts in ("ab", "a", "c", "b", "d"):
            stream.append("w1", [rows(*texts)], 0)
            if texts == "c":
                self.assertEqual([1, 2, 3], self.held(stream))

        self.assertEqual([3, 4, 5], self.held(stream))

    def test_rows_without_a_key_are_replaced_by_nothing(self) -> None:
        """No key means that nobody can say what makes it old."""
        stream = self.stream(room=2)

        for text in ("-1", "a1", "a2"):
            stream.append("w1", [rows(text)], 0)

        self.assertEqual([1, 3], self.held(stream))

    def test_one_row_without_a_key_keeps_its_fact(self) -> None:
        """All the other rows of the fact came again, but nothing replaced this one."""
        stream = self.stream(room=3)

        for texts in ("-a", "a", "a", "a"):
            stream.append("w1", [rows(*texts)], 0)

        self.assertEqual([1, 3, 4], self.held(stream))

    def test_a_fact_bigger_than_the_bound_is_held_until_the_next(self) -> None:
        """Readers that are told of it right now can still read it."""
        stream = self.stream(room=2)

        stream.append("w1", [rows("a"), rows("b" * 5000)], 0)

        self.assertEqual([2], self.held(stream))

    def test_what_all_have_read_is_forgotten_and_costs_nothing(self) -> None:
        """A day of typing must not leave a day of bookkeeping."""
        stream = self.stream()

        for _ in range(1000):
            stream.append("w1", [rows("a"), rows("a"), rows("b")], 0)
            stream.forget(stream.token)

        self.assertEqual(([], 0, 3000), (self.held(stream), stream.stored_bytes, stream.token))
        self.assertEqual((0, 0, 0), (len(stream._keys), len(stream._newest), len(stream._replaced)))

    def test_reading_after_a_dropped_token_gives_what_is_still_held(self) -> None:
        """A hole is no gap: the chain of prev_token stays as it was written."""
        stream = self.stream(room=2)
        for text in ("a1", "a2", "b1", "c1"):
            stream.append("w1", [rows(text)], 0)

        self.assertEqual([(2, 3), (3, 4)], [(fact.prev_token, fact.token) for fact in stream.after(1)])

    def test_tokens_that_were_given_come_in_order_of_token(self) -> None:
        """Two writers may bring the same; both are held, and read in one order by all."""
        stream = self.stream()

        made = [
            stream.append_assigned(writer, token, rows(f"{writer[1]}{token}"), 0)
            for writer, token in (("w1", 5), ("w2", 3), ("w2", 5), ("w1", 5), ("w2", 4), ("w1", 9), ("w2", 6))
        ]

        self.assertEqual([0, 0, 3, None, None, 5, 5], [fact and fact.prev_token for fact in made])
        self.assertEqual(
            [("w2", 3), ("w1", 5), ("w2", 5), ("w2", 6), ("w1", 9)],
            [(fact.writer, fact.token) for fact in stream.after(0)],
        )
        self.assertEqual([6, 9], self.held(stream, 5))
        self.assertEqual((9, {"w1": 9, "w2": 6}), (stream.token, stream.positions))
        page, more = stream.read_tokens(writer=None, after=3, upto=9, limit=1)
        self.assertEqual(([5, 5], True), ([fact.token for fact in page], more))
        stream.forget(5)
        self.assertEqual([6, 9], self.held(stream))

    def test_a_certificate_moves_the_position_and_is_not_held(self) -> None:
        """Readers that are behind get it from the position."""
        stream = self.stream()

        made = stream.append_assigned("w1", 5, b"[]", 7)

        self.assertEqual((0, 5, b"[]"), made and (made.prev_token, made.token, made.rows))
        self.assertEqual(
            ({"w1": 5}, 5, [], 0), (stream.positions, stream.token, self.held(stream), stream.stored_bytes)
        )
        self.assertIsNone(stream.append_assigned("w1", 5, rows("a"), 7))

    def test_a_writer_that_begins_anew_is_forgotten(self) -> None:
        """Its own facts, and nobody else's; its low tokens are news again."""
        stream = self.stream(room=3)
        for writer, token in (("w1", 70), ("w2", 5), ("w1", 71)):
            stream.append_assigned(writer, token, rows(f"a{token}"), 0)

        said = stream.reset_writer("w1", 9)

        self.assertEqual(
            (0, 3, "w1", 0, 0, b"[]", 9),
            (
                said.serial,
                said.epoch,
                said.writer,
                said.prev_token,
                said.token,
                said.rows,
                said.committed_at_ms,
            ),
        )
        self.assertEqual(([5], {"w1": 0, "w2": 5}, 5), (self.held(stream), stream.positions, stream.token))
        for token in (1, 2, 3):
            stream.append_assigned("w1", token, rows(f"a{token}"), 0)
        self.assertEqual([1, 2, 3], self.held(stream))
        stream.reset_writer("w2", 9)
        stream.reset_writer("w1", 9)
        self.assertEqual(([], 0, 0), (self.held(stream), stream.token, stream.stored_bytes))
        self.assertEqual([1], [fact.token for fact in stream.append("w3", [rows("a")], 0)])

    def test_the_newest_stays_though_its_token_is_low(self) -> None:
        """A restarted writer beside one that is far ahead must be heard, too."""
        stream = self.stream(room=1)
        stream.append_assigned("w1", 70, rows("a"), 0)

        stream.append_assigned("w2", 1, rows("b"), 0)

        self.assertEqual([1], self.held(stream))

    def test_pages_of_one_writer(self) -> None:
        """The HTTP edge reads ephemeral streams like all others."""
        stream = self.stream()
        for n in range(6):
            stream.append(f"w{n % 2}", [rows("a")], 0)

        page, more = stream.read_tokens(writer="w0", after=0, upto=5, limit=2)

        self.assertEqual(([1, 3], True), ([fact.token for fact in page], more))
        self.assertEqual(1, len(stream.read_tokens(writer="w0", after=3, upto=5, limit=2)[0]))


class RestartTests(SynchronousTestCase):
    """All streams are empty after it: another log was adopted."""

    def test_an_append_that_was_emptied_is_appended_again(self) -> None:
        """Its receipt named facts that nobody has any more."""
        store = EphemeralStore(["typing"], key_of=first_letter, max_bytes=1_000)
        store.restart(1)
        store.append("typing", "w", [rows("a")], 5, key=AppendKey("typing", "k"), checksum="c")
        store.restart(2)

        appended, added = store.append(
            "typing", "w", [rows("a")], 6, key=AppendKey("typing", "k"), checksum="c"
        )

        self.assertEqual((2, [1]), (appended.epoch, [fact.token for fact in added]))
