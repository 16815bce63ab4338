"""The check of a log: no serial missing, checksums and digests right, each position that of the last fact."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from synrepl.base.history import EpochStart
from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.storage.checked_rows import FACT_COLUMNS, CheckedRows, LogDamage, Row, crc_of, fits
from synrepl.storage.continuity import ChainCheck, DiscardedRanges
from synrepl.storage.provenance import NAMED, MarkCheck, unproven
from synrepl.storage.schema import (
    BESIDE_FACTS,
    CHECKSUMS_SINCE,
    DISCARDED_RANGES,
    EPOCH_STARTS,
    HEADER,
    LOG_BOUNDS,
    POSITIONS,
    VERSION,
    LogBounds,
    load_bounds,
    version_of,
)
from synrepl.storage.sql import Flavor, execute, placeholders
from synrepl.streams.facts import Fact
from synrepl.streams.writer import Writer
from synrepl.wire.text import printable

AT_ONCE: Final = 5_000
NEWEST: Final = 10_000
"""The number of newest facts that a quick check covers."""

SHOWN: Final = 5
"""The number of facts that a complaint lists."""

FORGED: Final = (
    "a daemon of a release up to 26.11.0 stored what somebody published as its own; a promotion asks whom to"
    " believe (manual: howto/replicas)"
)
RESTORE: Final = "restore the log from a copy; continuing it would do more damage"

Ask = Callable[..., Any]


def check_log(
    cursor: Any, flavor: Flavor, *, whole: bool, progress: Callable[[int, int], None]
) -> tuple[int, list[Complaint]]:
    """Check a log, `whole` or only its newest facts. Returns the number of facts checked, and complaints.

    `progress` is called with the number of newly checked facts and the total.
    """
    ask = _query_function(cursor, flavor)
    version = _version(ask)
    if version > VERSION:
        return 0, [
            _complaint(
                "newer_schema",
                f"its schema version is {version}, this release knows those up to {VERSION}: not examined",
                "run the doctor of the release that wrote it",
            )
        ]
    damage = _Damage(ask, has_checksums=version >= CHECKSUMS_SINCE)
    if whole:
        damage.check_structure(flavor)
    for table in BESIDE_FACTS if whole else (HEADER,):
        damage.rows(table)
    discarded = DiscardedRanges(damage.rows(DISCARDED_RANGES))
    last = ask("SELECT max(serial) FROM {}facts").fetchone()[0] or 0
    bounds = load_bounds(damage.rows(LOG_BOUNDS))
    # Up to the floor facts may be missing.
    floor = bounds.floor
    after = floor.serial if whole else max(floor.serial, last - NEWEST)
    digest: str | None = floor.digest
    if after != floor.serial:
        found = ask("SELECT digest FROM {}facts WHERE serial = ?", after).fetchone()
        digest = found[0] if found else None
    chain, marks, own = ChainCheck(discarded, after, digest), MarkCheck(), list[Fact]()
    after = 0 if whole else after
    whole = whole and not floor.serial
    total = ask("SELECT count(*) FROM {}facts WHERE serial > ?", after).fetchone()[0]
    checked = 0
    while facts := damage.facts(after, bounds):
        for fact, is_right in facts:
            if fact.serial <= floor.serial:
                continue
            if not is_right:
                chain.skip(fact)
                continue
            chain.add(fact)
            marks.add(fact)
            if fact.stream in NAMED:
                own.append(fact)
        after = facts[-1][0].serial
        checked += len(facts)
        progress(len(facts), total)
    marks.end()
    starts = [EpochStart(*row) for row in damage.rows(EPOCH_STARTS)]
    positions = {Writer(stream, writer): token for stream, writer, token in damage.rows(POSITIONS)}
    return checked, [
        *damage.complaints(),
        *_complaints(chain, positions, whole=whole),
        *_unproven(unproven(own, starts), marks),
    ]


class _Damage:
    """What of a log does not fit its checksums, and where that is."""

    def __init__(self, ask: Ask, *, has_checksums: bool) -> None:
        self._ask = ask
        self._has_checksums = has_checksums
        self._structure: list[str] = []
        self._tables: dict[str, int] = {}
        self._facts: list[Fact] = []
        self._unchecked: list[Fact] = []

    def check_structure(self, flavor: Flavor) -> None:
        """Let the database look at all of its pages and indexes, if it can."""
        if flavor == "sqlite":
            found = [one for (one,) in self._ask(f"PRAGMA integrity_check({SHOWN})").fetchall()]
            self._structure = [" ".join(one.split()) for one in found if one != "ok"]

    def rows(self, table: CheckedRows) -> list[Row]:
        """The rows of a table that fit their checksums."""
        stored = table.stored if self._has_checksums else f"{', '.join(table.columns)}, NULL"
        found = self._ask(f"SELECT {stored} FROM {{}}{table.name}").fetchall()
        right = [row[:-1] for row in found if not self._has_checksums or table.fits(row)]
        if len(right) < len(found):
            self._tables[table.name] = len(found) - len(right)
        return right

    def facts(self, after: int, bounds: LogBounds) -> list[tuple[Fact, bool]]:
        """The next facts beyond a serial, and whether each fits its checksum, if it has one."""
        crc = "crc" if self._has_checksums else "NULL"
        found = []
        for *row, stored in self._ask(
            f"SELECT {FACT_COLUMNS}, {crc} FROM {{}}facts WHERE serial > ? ORDER BY serial LIMIT ?",
            after,
            AT_ONCE,
        ):
            fact = Fact(*row)
            may_lack = not self._has_checksums or fact.serial <= bounds.unchecked_upto
            is_right = fits(tuple(row), stored) or (stored is None and may_lack)
            if not is_right:
                self._facts.append(fact)
            elif stored is None and fact.serial <= bounds.floor.serial:
                self._unchecked.append(fact)
            found.append((fact, is_right))
        return found

    def complaints(self) -> Iterator[Complaint]:
        """The complaints about all that was looked at."""
        for text in self._structure:
            yield _complaint("damaged_file", text, RESTORE)
        for name, count in self._tables.items():
            text = f"{count:,} of the rows of {name} do not fit their checksums"
            yield _complaint("damaged_row", text, RESTORE)
        if self._facts:
            streams = sorted({printable(str(fact.stream)) for fact in self._facts})
            yield _complaint(
                "damaged_fact",
                f"serial {', '.join(str(fact.serial) for fact in self._facts[:SHOWN])}"
                f"{_more(self._facts, 'facts')} does not fit its checksum, of {', '.join(streams[:SHOWN])}",
                RESTORE,
            )
        if self._unchecked:
            first, last = self._unchecked[0].serial, self._unchecked[-1].serial
            yield Complaint(
                severity="note",
                kind="unchecked_facts",
                stream="",
                text=f"the log: {len(self._unchecked):,} facts from serial {first} to {last} cannot be"
                " checked: a release up to 26.11.1 stored them, and those before them are gone",
                remedy="a replica that joins anew, and an archive, have checksums from the start",
            )


def repair_positions(cursor: Any, flavor: Flavor) -> list[tuple[str, str]]:
    """Raise or add every position that is behind its facts. Returns (stream, kind of complaint) for each.

    Discarded facts do not count. A running daemon does no harm: the positions that it stores are higher.
    """
    ask = _query_function(cursor, flavor)
    highest = ask(
        "SELECT stream, writer, max(token) FROM {}facts AS fact WHERE NOT EXISTS (SELECT 1 FROM"
        " {}discarded_ranges AS discarded WHERE discarded.stream = fact.stream"
        " AND fact.epoch < discarded.epoch AND fact.token > discarded.token) GROUP BY stream, writer"
    ).fetchall()
    has_checksums = _version(ask) >= CHECKSUMS_SINCE
    of_writer = "FROM {}positions WHERE (stream, writer) = (?, ?)"
    mended = []
    for row in highest:
        stream, writer, token = row
        known = ask(f"SELECT token {of_writer}", stream, writer).fetchone()
        if known is not None and known[0] >= token:
            continue
        columns, values = ", ".join(POSITIONS.columns), tuple(row)
        if has_checksums:
            columns, values = POSITIONS.stored, (*values, crc_of(values))
        ask(f"DELETE {of_writer}", stream, writer)
        ask(f"INSERT INTO {{}}positions ({columns}) VALUES ({placeholders(values)})", *values)
        mended.append((stream, "position_behind_facts"))
    return mended


def _version(ask: Ask) -> int:
    """The schema version; this release's if it is damaged, so that the damage is found."""
    try:
        return version_of(ask("SELECT * FROM {}log_header").fetchone())
    except LogDamage:
        return VERSION


def _complaints(chain: ChainCheck, positions: dict[Writer, int], *, whole: bool) -> list[Complaint]:
    found = []
    if chain.missing:
        text = f"serial {chain.missing[0]} is missing{_more(chain.missing, 'gaps')}"
        found.append(_complaint("missing_serial", text, RESTORE))
    if chain.wrong:
        text = f"the digest of serial {chain.wrong[0]} does not follow from the facts before it"
        found.append(_complaint("wrong_digest", text + _more(chain.wrong, "facts"), RESTORE))
    for (stream, writer), token, position in chain.wrong_positions(positions, whole=whole):
        if token is not None and (position is None or position < token):
            kind = "position_behind_facts"
            text = (
                f"the last fact of {writer} has token {token}, but the stored position of {writer} is"
                f" {'missing' if position is None else position}: a daemon refuses to start, or reuses tokens"
            )
            remedy = "run synrepl doctor --fix while the daemon is stopped"
        else:
            kind = "position_ahead_of_facts"
            what = "it has no fact" if token is None else f"its last fact has token {token}"
            text = f"{writer} is at position {position}, but {what}: the end of the log is lost"
            remedy = RESTORE
        found.append(Complaint(severity="error", kind=kind, stream=stream, text=text, remedy=remedy))
    return found


def _unproven(facts: list[Fact], marks: MarkCheck) -> Iterator[Complaint]:
    """The complaints about facts of the daemon's own streams that it may not have written."""
    for stream in NAMED:
        if named := [fact for fact in facts if fact.stream == stream]:
            listed = ", ".join(f"{fact.serial} by {printable(fact.writer)}" for fact in named[:SHOWN])
            text = (
                f"{stream} has facts of several writers between two promotions, where one daemon was primary:"
                f" serial {listed}{_more(named, 'facts')}"
            )
            yield _complaint("unproven_facts", text, FORGED)
    if marks.wrong:
        listed = ", ".join(map(str, marks.wrong[:SHOWN]))
        text = f"the marks of atomic appends at serial {listed}{_more(marks.wrong, 'marks')} have other facts"
        yield _complaint("unproven_facts", f"{text} after them than those they were stored with", FORGED)


def _more(found: Sequence[object], what: str) -> str:
    return f" ({len(found):,} such {what})" if len(found) > 1 else ""


def _complaint(kind: str, text: str, remedy: str) -> Complaint:
    return Complaint(severity="error", kind=kind, stream="", text=f"the log: {text}", remedy=remedy)


def _query_function(cursor: Any, flavor: Flavor) -> Ask:
    schema = "synrepl." if flavor == "postgresql" else ""

    def ask(statement: str, *values: object) -> Any:
        execute(cursor, flavor, statement.replace("{}", schema), values)
        return cursor

    return ask
