"""Tracebacks of which no exception is known: where they come from, by their files and packages."""

from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.homeserver.explanation.background_updates import told_of_unknown_update, unknown_update
from synrepl.homeserver.explanation.exceptions import told_alone, told_of_cut, told_of_exception
from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.faults import possible_faults
from synrepl.homeserver.explanation.modules import module_of
from synrepl.homeserver.explanation.results import Passage
from synrepl.wire.text import printable


def with_frames(passage: Passage, frames: Sequence[str], *, is_cut: bool) -> Passage:
    """Add where a traceback comes from of which the exception is not known, or missing."""
    words, advice = [*passage.words], passage.advice
    if is_cut:
        words.append("The traceback after it was cut off: the last line, with the exception, is missing.")
        # Its cause may be in the missing line; what is to be done whatever that is stays.
        kept = passage.advice if passage.kind in _TOLD_WITHOUT else []
        advice = ["paste it as a whole", *kept]
    possible = possible_faults(frames) if is_cut else []
    if is_cut and (cut := told_of_cut(frames)) is not None:
        possible.append(cut.means)
        advice.insert(0, cut.do)
    return msgspec.structs.replace(passage, words=[*words, *_places(frames), *possible], advice=advice)


_TOLD_WITHOUT: Final = ("rollback_failed",)
"""Messages of which it is known what to do, whatever the exception is."""

_SENDS_ROWS: Final = (
    "the loop that sends the rows of streams to the other processes: until it succeeds, they are not told"
)

PARTS: Final = {
    "synapse/metrics/__init__.py": "a metric that was asked for, and nothing else",
    "synapse/replication/tcp/resource.py": _SENDS_ROWS,
    "synapse/replication/tcp/handler.py": "what a process does with the commands and rows of the others",
    "synapse/replication/http/": "a request between two processes",
    "synapse/federation/sender/": "what this server sends to other homeservers",
    "synapse/federation/": "what other homeservers ask, and are asked",
    "synapse/appservice/": "what application services are sent",
    "synapse/push/": "pushes to telephones and mails",
    "synapse/handlers/sync.py": "the answer to a /sync",
    "synapse/handlers/sliding_sync/": "the answer to a sliding sync",
    "synapse/storage/background_updates.py": "an update of the database in the background",
    "synapse/app/": "the start of the process, or what it runs",
}
"""What a file of Synapse in a traceback tells of what failed: the first that is in it counts."""


def _part(frames: Sequence[str]) -> str:
    return next((start for start in PARTS if any(frame.startswith(start) for frame in frames)), "")


def _places(frames: Sequence[str]) -> list[str]:
    """Say where a traceback comes from."""
    if not frames:
        return []
    telling = [frame for frame in frames if frame not in OF_ALL_TRANSACTIONS] or frames
    told = [f"The last file of Synapse in it is {printable(telling[-1])}."]
    if part := _part(frames):
        told.append(f"What failed is {PARTS[part]}.")
        return told
    # What was to be done is in the first files, how it is done in the last ones.
    modules = (module_of(frame.removesuffix(".py").replace("/", ".")) for frame in frames)
    if module := next((one for one in modules if one and one.name not in _OF_ALL), None):
        told.append(f"What failed has to do with {module.about.partition(';')[0]}.")
    return told


_OF_SYNAPSE: Final = frozenset(
    (
        "attr",
        "authlib",
        "canonicaljson",
        "cryptography",
        "hiredis",
        "ijson",
        "jinja2",
        "jsonschema",
        "matrix_common",
        "msgpack",
        "nacl",
        "netaddr",
        "OpenSSL",
        "prometheus_client",
        "psycopg2",
        "pydantic",
        "service_identity",
        "signedjson",
        "sortedcontainers",
        "synapse",
        "treq",
        "twisted",
        "txredisapi",
        "unpaddedbase64",
        "yaml",
    )
)
"""Packages in which a failure is told by what is known of it: Synapse's own, and its libraries."""


_OF_CLIENTS: Final = frozenset(
    ("aiohttp", "httpcore", "httpx", "matrix_client", "maubot", "mautrix", "nio", "requests", "urllib3")
)
"""Packages of programs that ask Synapse, which it does not use itself."""

_OF_SERVERS: Final = ("db_", "pg_", "redis_")
"""How the kinds of what a server said begin: the package that passed it on has no part in it."""


def in_package(passage: Passage, package: str) -> Passage:
    """Say of what failed that it did so in a package of other authors: a module, or a library."""
    is_of_package = package and package not in _OF_SYNAPSE and not passage.kind.startswith(_OF_SERVERS)
    if passage.severity != "error" or not is_of_package:
        return passage
    name = printable(package)
    if package in _OF_CLIENTS:
        told = f"It was raised in {name}, which Synapse does not use: as a bridge or a bot does."
        return msgspec.structs.replace(passage, words=[*passage.words, told])
    told = (
        f"It was raised in {name}, which is no part of Synapse: a module of its configuration, or a library."
    )
    step = f"update {name}, so that it fits this release of Synapse (or take it out of the configuration)"
    advice = [step] if passage.kind in ("does_not_fit", "worker_lacks") else [step, *passage.advice]
    return msgspec.structs.replace(passage, words=[*passage.words, told], advice=advice)


OF_ALL_TRANSACTIONS: Final = frozenset(("synapse/storage/database.py", "synapse/storage/_base.py"))
"""Files by way of which all statements go: the one before tells which."""

_OF_ALL: Final = frozenset(
    ("synapse.http.server", "synapse.http.site", "synapse.http", "synapse.logging", "synapse.metrics")
)
"""Modules by way of which everything goes."""


def explain_exception(line: str) -> Passage | None:
    """Explain an exception that stands in a line alone, by its class; None if it is none that is known."""
    if (told := told_alone(line)) is None:
        return None
    text = excerpt(line)
    return Passage(
        kind="traceback",
        severity="error",
        text=text,
        words=[f"An exception, without the traceback that tells where it was raised: {text}", told.means],
        advice=[
            *([told.do] if told.do else []),
            "paste the whole traceback, with the line of the log before it, which tells what failed",
        ],
    )


CUT_TRACEBACK: Final = "Traceback"
"""The text of a passage of a traceback of which the end is missing."""


def explain_traceback(
    exceptions: Sequence[str], logger: str, frames: Sequence[str] = (), said: str = ""
) -> Passage:
    """Explain a traceback of which no exception is known, nor what its `logger` `said`."""
    place, part = _places(frames), _part(frames)
    if logger and any(map(str.isalpha, said)):
        place.insert(0, f"It said: {excerpt(said)}")
    if exceptions:
        text = excerpt(exceptions[-1])
        if update := unknown_update("", exceptions, frames):
            return told_of_unknown_update(
                Passage(kind="update_failed", severity="error", text=text, words=[]), update
            )
        where = (
            f"The module {printable(logger)} logged a failure" if logger else "A traceback: something failed"
        )
        told = told_of_exception(exceptions[-1], frames)
        words = [
            f"{where} with an exception that is not known here. {text}",
            *([told.means] if told else []),
            *place,
        ]
        advice = [] if logger else ["the line of the log before it tells what failed: paste it too"]
        advice = [*([told.do] if told and told.do else []), *advice]
        if PARTS.get(part) == _SENDS_ROWS:
            advice.insert(0, "see which stream stands still, and at which process: synrepl inspect")
        advice.append("if it comes again and again: search for its last line, and update Synapse and modules")
    else:
        text = CUT_TRACEBACK
        words = [
            "A traceback that was cut off: its last line, which names the exception, is missing.",
            *([f"The module {printable(logger)} logged it."] if logger else []),
            *place,
            *possible_faults(frames),
        ]
        advice = ["paste the whole traceback" + ("" if logger else ", with the line of the log before it")]
        if (cut := told_of_cut(frames)) is not None:
            words.append(cut.means)
            advice.insert(0, cut.do)
    return Passage(kind="traceback", severity="error", text=text, words=words, advice=advice)
