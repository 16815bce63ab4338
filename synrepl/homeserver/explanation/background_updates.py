"""Updates of the database in the background: which one failed, and the faults that releases had in it."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from synrepl.homeserver.explanation.duplicates import UPDATES
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage

_NO_UPDATE: Final = re.compile(r"(?:Error doing update|KeyError): '(?P<name>\w{3,100})'\Z", re.ASCII)


def unknown_update(text: str, reasons: Sequence[Match | str], frames: Sequence[str]) -> str:
    """Return the name of an update that the release does not have, if that is why it failed; else ""."""
    told = [text] if not reasons else [one if isinstance(one, str) else one.text for one in reasons[-1:]]
    is_there = list(frames[-1:]) in ([UPDATES], [] if text else [UPDATES])
    found = _NO_UPDATE.fullmatch(told[0].strip()) if is_there else None
    return found["name"] if found else ""


class UpdateFault(NamedTuple):
    """A fault in an update: the releases that have it, from `since` ("" is not known) to before `until`."""

    since: str
    until: str
    source: str
    what: str

    @property
    def sentence(self) -> str:
        """What it is, and which releases have it."""
        which = self.since or f"Releases before {self.until}"
        return f"{which} had a fault in it, which {self.until} mends ({self.source}): {self.what}."


_RECEIPTS: Final = UpdateFault(
    "1.70",
    "1.77",
    "matrix-org/synapse#14915",
    "it failed at rows that were there twice, or once it was interrupted",
)
_DIRECTORY: Final = UpdateFault(
    "", "1.59.1", "matrix-org/synapse#12762", "it stopped at a user with a NUL in the name or avatar"
)
FAULTS: Final[Mapping[str, UpdateFault]] = {
    "chain_cover": UpdateFault(
        "1.26.0rc1", "1.26.0rc2", "matrix-org/synapse#9210", "it failed at events with one auth event twice"
    ),
    "devices_last_seen": UpdateFault("", "1.4.0rc2", "matrix-org/synapse#6135", "it failed"),
    "event_search_sqlite_delete_non_strings": UpdateFault(
        "1.54",
        "1.55",
        "matrix-org/synapse#12215",
        "where search is turned off (enable_search) it does not know it, and tries again without end",
    ),
    "event_store_labels": UpdateFault(
        "", "1.6.0rc2", "matrix-org/synapse#6407", "it failed at an event, and tried again without end"
    ),
    "populate_stats_process_rooms": UpdateFault(
        "", "1.76", "matrix-org/synapse#14873", "it failed at broken rooms"
    ),
    "populate_user_directory_process_users": _DIRECTORY,
    "populate_user_directory_process_rooms": _DIRECTORY,
    "receipts_graph_unique_index": _RECEIPTS,
    "receipts_linearized_unique_index": _RECEIPTS,
    "remove_deleted_devices_from_device_inbox": UpdateFault(
        "1.47.0rc1", "1.47.0rc3", "matrix-org/synapse#11303", "it did not run"
    ),
    "remove_stale_pushers": UpdateFault("1.29", "1.44", "matrix-org/synapse#10843", "it failed with SQLite"),
    "set_device_id_for_pushers": UpdateFault(
        "1.95", "1.96", "matrix-org/synapse#16594", "it failed (as 1.81.0rc1 did for another reason)"
    ),
}
"""The faults that Synapse's changelog tells of, by the name of the update."""

FORGOTTEN: Final = frozenset(("event_search_sqlite_delete_non_strings",))
"""Updates that the release which puts them into the table does not know itself."""

_STARTED: Final = re.compile(r"Starting update batch on background update '(?P<name>\w{3,100})'", re.ASCII)


def started_update(text: str) -> str:
    """Return the name of the update of which a message says that its next step begins; else ""."""
    found = _STARTED.match(text)
    return found["name"] if found else ""


def with_update(passage: Passage, name: str) -> Passage:
    """Say of an update that failed which one it is, and what is known of it."""
    if not name or any(name in word for word in passage.words):
        return passage
    index = (
        ", which makes an index: until it succeeds some requests are slower" if _INDEX.search(name) else ""
    )
    words, advice = [*passage.words, f"It is the update {name}{index}."], list(passage.advice)
    if (fault := FAULTS.get(name)) and not any(fault.source in word for word in words):
        words.append(fault.sentence)
        advice.insert(0, f"if this process runs an older release than {fault.until}: update")
    return msgspec.structs.replace(passage, words=words, advice=advice)


_INDEX: Final = re.compile(r"_(?:idx|index)\d?\Z")


def told_of_unknown_update(passage: Passage, update: str) -> Passage:
    """Say of an update that failed that the release does not know it."""
    words = [
        (
            f"The table background_updates has an update, {update}, that this release does not know: a newer"
            " one put it there, and an older one was started again; or the name was put there by hand. The"
            " updates after it wait. The database is not damaged."
        )
    ]
    fault = FAULTS[update] if update in FORGOTTEN else None
    if fault is not None:
        words.append(fault.sentence)
    advice = [
        (
            "start the newer release again, which ends it. If that is not to be, or the name is wrong: delete"
            " its row while Synapse is down"
        )
    ]
    if fault is not None:
        advice.insert(
            0, f"update to {fault.until} or later, if this process runs {fault.since or 'an older one'}"
        )
    return msgspec.structs.replace(passage, words=words, advice=advice)
