"""Whether a log is whole: every serial there, every digest right, every position that of the last fact."""

from collections.abc import Callable
from typing import Any, Final

from synrepl.ports.history import BEGINNING
from synrepl.storage.continuity import advance
from synrepl.storage.discarded import DiscardedRanges
from synrepl.storage.doctor.complaints import Complaint
from synrepl.storage.engine import COLUMNS
from synrepl.storage.ids.database import Flavor
from synrepl.storage.schema import MIGRATIONS
from synrepl.storage.sql import execute
from synrepl.storage.writer_positions import load_places
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact

__all__ = ["NEWEST", "check_log", "mend_positions"]

AT_ONCE: Final = 5_000
NEWEST: Final = 10_000
"""How many facts are checked when not all of them are."""

RESTORE: Final = "restore the log from a copy; going on from there would make it worse"

Ask = Callable[..., Any]


def check_log(
    cursor: Any, flavor: Flavor, *, whole: bool, progress: Callable[[int, int], None]
) -> tuple[int, list[Complaint]]:
    """How many facts were checked, and what is wrong. `progress` hears how many more, of how many in all."""
    ask = _asking(cursor, flavor)
    version = ask("SELECT max(value) FROM {}meta WHERE key = 'version'").fetchone()[0]
    if version is None or version > len(MIGRATIONS):
        return 0, [
            _complaint(
                "newer_schema",
                f"has schema version {version}, this release knows {len(MIGRATIONS)}: it was not looked at",
                "run the doctor of the release that wrote it",
            )
        ]
    # Lost history came with the second version.
    voids = DiscardedRanges(ask("SELECT stream, epoch, token FROM {}voids") if version > 1 else ())
    chain = _Chain(voids)
    last = ask("SELECT max(serial) FROM {}facts").fetchone()[0] or 0
    # Trimming, and filters of replicas, came with the third: up to there facts may well be missing.
    floor = (
        load_places(ask("SELECT name, epoch, serial, digest FROM {}places")).floor
        if version > 2
        else BEGINNING
    )
    after = floor.serial if whole else max(floor.serial, last - NEWEST)
    if after == floor.serial:
        chain.goes_on_from(after, floor.digest)
    else:
        found = ask("SELECT digest FROM {}facts WHERE serial = ?", after).fetchone()
        chain.goes_on_from(after, found[0] if found else None)
    whole = whole and not floor.serial
    total = max(0, last - after)
    while after < last:
        facts = [
            Fact(*row)
            for row in ask(
                f"SELECT {COLUMNS} FROM {{}}facts WHERE serial > ? ORDER BY serial LIMIT ?", after, AT_ONCE
            )
        ]
        for fact in facts:
            chain.add(fact)
        after = facts[-1].serial
        progress(len(facts), total)
    positions = {
        (stream, writer): token
        for stream, writer, token in ask("SELECT stream, writer, token FROM {}positions")
    }
    return chain.checked, [*chain.complaints(), *_of_positions(positions, chain, voids, whole=whole)]


def mend_positions(cursor: Any, flavor: Flavor) -> list[tuple[str, str]]:
    """Bring every position that is behind its facts up to them; which, as (stream, kind of complaint).

    Facts that are void count for nothing. A daemon that runs beside does no harm: what it stores meanwhile is
    further.
    """
    ask = _asking(cursor, flavor)
    version = ask("SELECT max(value) FROM {}meta WHERE key = 'version'").fetchone()[0]
    counts = (
        "NOT EXISTS (SELECT 1 FROM {}voids AS void WHERE void.stream = fact.stream"
        " AND fact.epoch < void.epoch AND fact.token > void.token)"
        if version > 1
        else "true"
    )
    found = ask(
        "INSERT INTO {}positions (stream, writer, token) SELECT stream, writer, max(token)"
        f" FROM {{}}facts AS fact WHERE {counts} GROUP BY stream, writer"
        " ON CONFLICT (stream, writer) DO UPDATE SET token = excluded.token"
        " WHERE positions.token < excluded.token RETURNING stream"
    )
    return [(stream, "position_behind_facts") for (stream,) in found]


class _Chain:
    """The facts so far. `highest` is the highest token of each stream and writer, as far as facts still
    count; of those that have `moved`, not all facts came late.
    """

    def __init__(self, voids: DiscardedRanges) -> None:
        self.checked = 0
        self._voids = voids
        self.highest: dict[tuple[str, str], int] = {}
        self.moved: set[tuple[str, str]] = set()
        self._serial = 0
        self._digest: str | None = EMPTY
        self._missing: list[int] = []
        self._wrong: list[int] = []

    def goes_on_from(self, serial: int, digest: str | None) -> None:
        """Begin after this fact; with no digest, the first fact is believed."""
        self._serial, self._digest = serial, digest

    def add(self, fact: Fact) -> None:
        """Take the next fact; what is wrong with it does not spoil those that follow."""
        if fact.serial != self._serial + 1:
            self._missing.append(self._serial + 1)
        elif self._digest is not None and verify([fact], self._digest) is not None:
            self._wrong.append(fact.serial)
        self._serial, self._digest = fact.serial, fact.digest
        if not self._voids.hold(fact):
            advance(self.highest, [fact])
            if fact.prev_token < fact.token:
                self.moved.add((fact.stream, fact.writer))
        self.checked += 1

    def complaints(self) -> list[Complaint]:
        """What is wrong with the chain."""
        found = []
        if self._missing:
            text = f"serial {self._missing[0]} is missing{_more(self._missing, 'gaps')}"
            found.append(_complaint("missing_serial", text, RESTORE))
        if self._wrong:
            text = f"the digest of serial {self._wrong[0]} does not follow from the facts before it"
            text += _more(self._wrong, "facts")
            found.append(_complaint("wrong_digest", text, RESTORE))
        return found


def _of_positions(
    positions: dict[tuple[str, str], int], chain: _Chain, voids: DiscardedRanges, *, whole: bool
) -> list[Complaint]:
    """Each is the highest token of the writer's facts, or where its lost history ends. Where not all facts
    were read, only those seen count, and of a writer whose facts all came late it may be further.
    """
    found = []
    for stream, writer in sorted(chain.highest | positions if whole else chain.highest):
        token, position = chain.highest.get((stream, writer)), positions.get((stream, writer))
        may_be_further = bool(voids.of(stream)) or not (whole or (stream, writer) in chain.moved)
        if token is not None and (position is None or position < token):
            kind = "position_behind_facts"
            text = (
                f"the last fact of {writer} has token {token}, its position says {position}: a daemon does"
                " not start with it, or gives tokens a second time"
            )
            remedy = "run synrepl doctor --fix while the daemon is stopped"
        elif position is not None and (token is None or position > token) and not may_be_further:
            kind = "position_ahead_of_facts"
            what = "is none at all" if token is None else f"has token {token}"
            text = (
                f"the position of {writer} says {position}, its last fact {what}: the end of the log is lost"
            )
            remedy = RESTORE
        else:
            continue
        found.append(Complaint(severity="error", kind=kind, stream=stream, text=text, remedy=remedy))
    return found


def _more(found: list[int], what: str) -> str:
    return f" ({len(found):,} such {what})" if len(found) > 1 else ""


def _complaint(kind: str, text: str, remedy: str) -> Complaint:
    return Complaint(severity="error", kind=kind, stream="", text=f"the log: {text}", remedy=remedy)


def _asking(cursor: Any, flavor: Flavor) -> Ask:
    """Runs a statement in which ``{}`` stands where the schema of the log's tables goes."""

    schema = "synrepl." if flavor == "postgresql" else ""

    def ask(statement: str, *values: object) -> Any:
        execute(cursor, flavor, statement.replace("{}", schema), values)
        return cursor

    return ask
