"""The check of a log: no serial missing, all digests right, each position that of the last fact."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from synrepl.base.history import EpochStart
from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.storage.continuity import ChainCheck, DiscardedRanges
from synrepl.storage.provenance import NAMED, MarkCheck, unproven
from synrepl.storage.schema import COLUMNS, EPOCH_START_COLUMNS, VERSION, load_bounds
from synrepl.storage.sql import Flavor, execute
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
    version = ask("SELECT schema_version FROM {}log_header").fetchone()[0]
    if version > VERSION:
        return 0, [
            _complaint(
                "newer_schema",
                f"its schema version is {version}, this release knows those up to {VERSION}: not examined",
                "run the doctor of the release that wrote it",
            )
        ]
    discarded = DiscardedRanges(ask("SELECT stream, epoch, token FROM {}discarded_ranges"))
    last = ask("SELECT max(serial) FROM {}facts").fetchone()[0] or 0
    # Up to the floor facts may be missing.
    floor = load_bounds(ask("SELECT name, epoch, serial, digest FROM {}log_bounds")).floor
    after = floor.serial if whole else max(floor.serial, last - NEWEST)
    digest: str | None = floor.digest
    if after != floor.serial:
        found = ask("SELECT digest FROM {}facts WHERE serial = ?", after).fetchone()
        digest = found[0] if found else None
    chain, marks, own = ChainCheck(discarded, after, digest), MarkCheck(), list[Fact]()
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
            marks.add(fact)
        own += [fact for fact in facts if fact.stream in NAMED]
        after = facts[-1].serial
        progress(len(facts), total)
    marks.end()
    starts = [EpochStart(*row) for row in ask(f"SELECT {EPOCH_START_COLUMNS} FROM {{}}epoch_starts")]
    positions = {
        Writer(stream, writer): token
        for stream, writer, token in ask("SELECT stream, writer, token FROM {}positions")
    }
    complaints = _complaints(chain, positions, whole=whole) + list(_unproven(unproven(own, starts), marks))
    return chain.checked, complaints


def repair_positions(cursor: Any, flavor: Flavor) -> list[tuple[str, str]]:
    """Raise or add every position that is behind its facts. Returns (stream, kind of complaint) for each.

    Discarded facts do not count. A running daemon does no harm: the positions that it stores are higher.
    """
    ask = _query_function(cursor, flavor)
    found = ask(
        "INSERT INTO {}positions (stream, writer, token) SELECT stream, writer, max(token)"
        " FROM {}facts AS fact WHERE NOT EXISTS (SELECT 1 FROM {}discarded_ranges AS discarded"
        " WHERE discarded.stream = fact.stream AND fact.epoch < discarded.epoch"
        " AND fact.token > discarded.token) GROUP BY stream, writer"
        " ON CONFLICT (stream, writer) DO UPDATE SET token = excluded.token"
        " WHERE positions.token < excluded.token RETURNING stream"
    )
    return [(stream, "position_behind_facts") for (stream,) in found]


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
