"""The check of a log: no serial missing, all digests right, each position that of the last fact."""

from collections.abc import Callable
from typing import Any, Final

from synrepl.ports.history import BEGINNING
from synrepl.storage.continuity import DiscardedRanges, advance
from synrepl.storage.doctor.complaints import Complaint
from synrepl.storage.ids.database import Flavor
from synrepl.storage.schema import COLUMNS, VERSION, load_bounds
from synrepl.storage.sql import execute
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact

__all__ = ["NEWEST", "check_log", "repair_positions"]

AT_ONCE: Final = 5_000
NEWEST: Final = 10_000
"""The number of newest facts that a quick check covers."""

RESTORE: Final = "restore the log from a copy; continuing it would do more damage"

Ask = Callable[..., Any]


def check_log(
    cursor: Any, flavor: Flavor, *, whole: bool, progress: Callable[[int, int], None]
) -> tuple[int, list[Complaint]]:
    """Check a log. Returns the number of facts checked, and complaints.

    `progress` is called with the number of newly checked facts and the total.
    """
    ask = _query_function(cursor, flavor)
    version = ask("SELECT max(value) FROM {}meta WHERE key = 'version'").fetchone()[0]
    if version is None or version > VERSION:
        return 0, [
            _complaint(
                "newer_schema",
                f"has schema version {version}, this release knows {VERSION}: not examined",
                "run the doctor of the release that wrote it",
            )
        ]
    # Discarded ranges exist from schema version 2 on.
    discarded = DiscardedRanges(ask("SELECT stream, epoch, token FROM {}voids") if version > 1 else ())
    chain = _Chain(discarded)
    last = ask("SELECT max(serial) FROM {}facts").fetchone()[0] or 0
    # Trimming and filtered replicas exist from version 3 on: up to the floor facts may be missing.
    floor = (
        load_bounds(ask("SELECT name, epoch, serial, digest FROM {}places")).floor
        if version > 2
        else BEGINNING
    )
    after = floor.serial if whole else max(floor.serial, last - NEWEST)
    if after == floor.serial:
        chain.start_after(after, floor.digest)
    else:
        found = ask("SELECT digest FROM {}facts WHERE serial = ?", after).fetchone()
        chain.start_after(after, found[0] if found else None)
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
    return chain.checked, [*chain.complaints(), *_check_positions(positions, chain, discarded, whole=whole)]


def repair_positions(cursor: Any, flavor: Flavor) -> list[tuple[str, str]]:
    """Raise every position that is behind its facts. Returns a (stream, kind of complaint) for each.

    Discarded facts do not count. A running daemon does no harm: the positions that it stores are higher.
    """
    ask = _query_function(cursor, flavor)
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
    """The facts checked so far. `highest` has the highest valid token of each stream and writer; those in
    `advanced` have at least one fact that was not late.
    """

    def __init__(self, discarded: DiscardedRanges) -> None:
        self.checked = 0
        self._discarded = discarded
        self.highest: dict[tuple[str, str], int] = {}
        self.advanced: set[tuple[str, str]] = set()
        self._serial = 0
        self._digest: str | None = EMPTY
        self._missing: list[int] = []
        self._wrong: list[int] = []

    def start_after(self, serial: int, digest: str | None) -> None:
        """Start after this fact; without a digest the first fact is trusted."""
        self._serial, self._digest = serial, digest

    def add(self, fact: Fact) -> None:
        """Check the next fact; an error in it does not affect the following ones."""
        if fact.serial != self._serial + 1:
            self._missing.append(self._serial + 1)
        elif self._digest is not None and verify([fact], self._digest) is not None:
            self._wrong.append(fact.serial)
        self._serial, self._digest = fact.serial, fact.digest
        if not self._discarded.contains(fact):
            advance(self.highest, [fact])
            if fact.prev_token < fact.token:
                self.advanced.add((fact.stream, fact.writer))
        self.checked += 1

    def complaints(self) -> list[Complaint]:
        """The complaints about serials and digests."""
        found = []
        if self._missing:
            text = f"serial {self._missing[0]} is missing{_more(self._missing, 'gaps')}"
            found.append(_complaint("missing_serial", text, RESTORE))
        if self._wrong:
            text = f"the digest of serial {self._wrong[0]} does not follow from the facts before it"
            text += _more(self._wrong, "facts")
            found.append(_complaint("wrong_digest", text, RESTORE))
        return found


def _check_positions(
    positions: dict[tuple[str, str], int], chain: _Chain, discarded: DiscardedRanges, *, whole: bool
) -> list[Complaint]:
    """Compare each position with the highest token of the writer's facts, or the end of its discarded range.

    In a quick check only the facts read count, and a writer with only late facts may be further.
    """
    found = []
    for stream, writer in sorted(chain.highest | positions if whole else chain.highest):
        token, position = chain.highest.get((stream, writer)), positions.get((stream, writer))
        may_be_further = discarded.has_stream(stream) or not (whole or (stream, writer) in chain.advanced)
        if token is not None and (position is None or position < token):
            kind = "position_behind_facts"
            text = (
                f"the last fact of {writer} has token {token}, its position is {position}: a daemon refuses"
                " to start with it, or reuses tokens"
            )
            remedy = "run synrepl doctor --fix while the daemon is stopped"
        elif position is not None and (token is None or position > token) and not may_be_further:
            kind = "position_ahead_of_facts"
            what = "does not exist" if token is None else f"has token {token}"
            text = f"the position of {writer} is {position}, its last fact {what}: the end of the log is lost"
            remedy = RESTORE
        else:
            continue
        found.append(Complaint(severity="error", kind=kind, stream=stream, text=text, remedy=remedy))
    return found


def _more(found: list[int], what: str) -> str:
    return f" ({len(found):,} such {what})" if len(found) > 1 else ""


def _complaint(kind: str, text: str, remedy: str) -> Complaint:
    return Complaint(severity="error", kind=kind, stream="", text=f"the log: {text}", remedy=remedy)


def _query_function(cursor: Any, flavor: Flavor) -> Ask:
    """A function that runs a statement, with the schema of the log's tables in place of ``{}``."""

    schema = "synrepl." if flavor == "postgresql" else ""

    def ask(statement: str, *values: object) -> Any:
        execute(cursor, flavor, statement.replace("{}", schema), values)
        return cursor

    return ask
