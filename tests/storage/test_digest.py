"""The digest is a public format: anyone must be able to recompute it."""

import shutil
import subprocess
from hashlib import sha256
from unittest import TestCase, skipUnless

import msgspec

from synrepl.streams.digest import EMPTY, chain, verify
from tests.storage.builders import facts_after


class DigestTests(TestCase):
    """The chain, and what breaks it."""

    def test_the_text_under_the_digest_is_as_documented(self) -> None:
        """Archives hold digests for years: this text may never change."""
        text = "0" * 64 + ' 1 2 events w1 3 4 1700000000000 [["caf\\u00e9"]]'

        found = chain(
            EMPTY,
            serial=1,
            epoch=2,
            stream="events",
            writer="w1",
            prev_token=3,
            token=4,
            committed_at_ms=1_700_000_000_000,
            rows=b'[["caf\\u00e9"]]',
        )

        self.assertEqual(sha256(text.encode()).hexdigest(), found)

    @skipUnless(shutil.which("sha256sum"), "no sha256sum here")
    def test_a_shell_can_recompute_it(self) -> None:
        """The docstring promises one line of shell."""
        fact = facts_after(None, ("events", "w1", 0, 1))[0]
        script = "printf '%s' \"$1 $2 $3 $4 $5 $6 $7 $8 $9\" | sha256sum"
        fields = msgspec.structs.replace(fact, rows=fact.rows.decode())
        values = [EMPTY, fields.serial, fields.epoch, fields.stream, fields.writer, fields.prev_token]
        values += [fields.token, fields.committed_at_ms, fields.rows]

        told = subprocess.run(["sh", "-c", script, "sh", *map(str, values)], capture_output=True, check=True)

        self.assertEqual(fact.digest, told.stdout.split()[0].decode())

    def test_any_change_breaks_the_chain_where_it_was_made(self) -> None:
        """An audit must say where history differs, not only that it does."""
        facts = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 6)))
        self.assertIsNone(verify(facts, EMPTY))
        self.assertIsNone(verify(facts[2:], facts[1].digest))

        for field, value in (
            ("epoch", 7),
            ("stream", "other"),
            ("writer", "w2"),
            ("prev_token", 0),
            ("token", 9),
            ("rows", b"[]"),
            ("committed_at_ms", 1),
            ("digest", EMPTY),
        ):
            changed = [*facts]
            changed[2] = msgspec.structs.replace(facts[2], **{field: value})
            self.assertEqual(3, verify(changed, EMPTY), field)
        self.assertEqual(4, verify([*facts[:2], *facts[3:]], EMPTY))
