"""What an exception that is not known by its text means by its class, and by where it was raised."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple


class Told(NamedTuple):
    """What is said of an exception, and what to do."""

    means: str
    do: str = ""


_CLASS: Final = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w{1,80})(?P<told>: .*|:?\Z)", re.ASCII | re.DOTALL
)
_WRAPPED: Final = re.compile(
    r"FirstError\[.{0,200}?<(?:class|type) '(?:\w+\.){0,10}(?P<name>\w{1,80})'>: (?P<told>[^\n]{1,1000})",
    re.DOTALL,
)
"""An exception in that of several tasks that were done at once."""

_SEARCH: Final = (
    "see whether a newer release mends it: search for the exception's line in the issues of Synapse,"
    " and update"
)
_OF_PROGRAM: Final = frozenset(
    (
        "AttributeError",
        "IndexError",
        "NameError",
        "NotImplementedError",
        "TypeError",
        "UnboundLocalError",
        "ZeroDivisionError",
    )
)
"""Exceptions that a program raises where it is wrong itself, or meets what it was not made for."""

_CONFIGURATION: Final = "synapse/config/"

_EMPTY: Final = Told(
    (
        "Synapse failed where it read its configuration: a section is there and empty (or a line below"
        " it is not set in), or a value is of another kind, as a text where a list belongs."
    ),
    (
        "the last file of synapse/config/ in the traceback has the section's name: fill it or take it out. Of"
        " experimental_features, 1.157.0 does not bear an empty one, and 1.157.1 does"
        " (element-hq/synapse#19987)"
    ),
)
_PROGRAM: Final = Told(
    (
        "By its kind that is a fault of the program, in Synapse or in a module, or a value is missing (None)"
        " where it needs one."
    ),
    _SEARCH,
)
_OF_MODULE: Final = re.compile(
    r"\w*(?:Backend|Provider|Module|Checker|Authenticator|Rules|Mapping)\w*\.\w+\(\)"
    r" (?:takes|missing|got an)",
    re.ASCII,
)
_UNFIT_MODULE: Final = Told(
    (
        "A module is called by Synapse with other arguments than it takes: its release and that of Synapse do"
        " not fit each other."
    ),
    (
        "update the module that has that class (see modules and media_storage_providers in homeserver.yaml),"
        " and Synapse, if the module is the newer one; or take it out until then"
    ),
)
_ASSERTION: Final = Told(
    (
        "Synapse checks there what should always hold, and it did not: by its kind a fault of the"
        " release, or rows of the database that do not fit each other (a restore, a deletion by hand)."
    ),
    _SEARCH,
)
_BY_NAME: Final = {
    "KeyError": Told(
        "The program looked for something by that name, and it is not there: a row that others name, or"
        " a fault of the release.",
        _SEARCH,
    ),
    "ValueError": Told("A value has not the form that the program expects there."),
    "UnicodeDecodeError": Told("Bytes are no text in the encoding that the program expects there."),
    "UnicodeEncodeError": Told(
        "A text has characters that the encoding of the process does not have.",
        "set the locale of the process to one with UTF-8 (LANG=C.UTF-8), and of the database too",
    ),
    "JSONDecodeError": Told("A text that should be JSON is none."),
    "InternalError": Told(
        "The database reports a fault of its own.", "look at PostgreSQL's own log of that time"
    ),
    "DataError": Told("The database does not take a value: of another type, too long, or out of range."),
    "IntegrityError": Told("The database refused a row that would break a rule of its table."),
    "ProgrammingError": Told(
        "The database refused a statement: it has another schema than this release expects, or lacks a right."
    ),
    "OperationalError": Told(
        "The database did not do what was asked: it was not reached, was busy, or had an error of its own.",
        "look at PostgreSQL's own log of that time",
    ),
    "InterfaceError": Told(
        "The driver of the database was asked for what it cannot do, as on a connection that is closed.",
        _SEARCH,
    ),
    "HttpResponseException": Told("Another server answered with the error in its text."),
    "RequestSendFailed": Told(
        "A request got no answer: the other side was not reached (network, DNS, TLS).",
        "see the reason in brackets; of one server alone: it is down",
    ),
    "SynapseError": Told("Synapse refused what was asked, for the reason in its text."),
    "AuthError": Told("Synapse refused what was asked, as it is not allowed in that room or for that user."),
    "StoreError": Told("What was asked for is not in the database."),
    "NotFoundError": Told("What was asked for is not there."),
    "LimitExceededError": Told("Synapse refused, as somebody asks too often.", "see the rc_ settings"),
    "FederationDeniedError": Told(
        "federation_domain_whitelist does not have that homeserver.",
        "add it, if it is to be reached; the own server_name belongs in it too",
    ),
    "FederationError": Told("A homeserver sent what is not accepted in that room."),
    "ConfigError": Told("The configuration is wrong, as its text says."),
    "ConnectError": Told("A connection could not be made."),
    "ConnectionDone": Told("The other side closed the connection."),
    "ConnectionLost": Told("The connection was lost on the way."),
    "SMTPConnectError": Told(
        "The mail server was not reached, or refused the connection (as one with too many at once).",
        "see smtp_host and smtp_port under email:, and the mail server's own log",
    ),
    "SMTPAuthenticationError": Told(
        "The mail server refused the user or the password.", "see smtp_user, smtp_pass"
    ),
    "AUTHRequiredError": Told("The mail server wants a login.", "set smtp_user and smtp_pass under email:"),
    "TLSRequiredError": Told(
        "The mail server wants TLS, or has none.", "see require_transport_security, force_tls"
    ),
    "SMTPClientError": Told(
        "The mail server was not reached, or broke off.", "see the mail server's own log"
    ),
    "SMTPDeliveryError": Told("The mail server refused the mail, as its number and words say."),
    "MemoryError": Told("The process got no more memory.", "look at the memory of the system and its limits"),
    "RecursionError": Told(
        "The program called itself too often: by its kind a fault of the release.", _SEARCH
    ),
    "PermissionError": Told(
        "The process may not use that file or address.", "see its user, and the rights there"
    ),
    "FileNotFoundError": Told("A file is not there, at that path as the process sees it."),
    "BrokenPipeError": Told("The other side closed the connection while the process wrote."),
    "OSError": Told("The system refused what the process asked for, as the number and the words say."),
    "SSLError": Told("TLS failed: a certificate, or the other side does not speak it there."),
    "Error": Told("OpenSSL or another library failed, as its text says."),
    "ImportError": Told(
        "A Python module, or a part of one, could not be loaded, for the reason in its text.",
        "install its package again, in the release that Synapse asks for, in the environment of each process:"
        " pip check tells what does not fit",
    ),
    "SyntaxError": Told(
        "A file of Python is not for this release of Python, or is damaged.",
        "see which file it names, and install its package again for this Python",
    ),
    "RuntimeError": Told("The program does not go on, for the reason in its text."),
    "OverflowError": Told("A number is too large for what it is used for."),
    "SystemError": Told("Python, or a compiled package, reports a fault of its own."),
    "EOFError": Told("An input ended before it was whole."),
    "UnicodeError": Told("A text, or the name of a host, cannot be written in the form that is asked for."),
    **dict.fromkeys(
        ("FileExistsError", "IsADirectoryError", "NotADirectoryError"),
        Told("A path is not what the program expects there: a file, a folder, or nothing."),
    ),
    **dict.fromkeys(
        ("TimeoutError", "TCPTimedOutError"),
        Told("The other side did not answer in time.", "see whether it runs, its load, and the way to it"),
    ),
    "CancelledError": Told("What was being done was given up: its client went away, or its time was over."),
    "ConnectionRefusedError": Told(
        "Nothing listens at that address, or it is not open to this process.",
        "see whether the other side runs, and listens there",
    ),
    **dict.fromkeys(
        ("ConnectionResetError", "ConnectionAbortedError", "ResponseFailed", "ResponseNeverReceived"),
        Told(
            "The connection ended before the answer was whole.", "see the other side's own log of that time"
        ),
    ),
    **dict.fromkeys(
        ("DNSLookupError", "UnknownHostError"),
        Told(
            "The name of a host has no address, as seen from the process.", "getent hosts NAME tries it there"
        ),
    ),
    "NoRouteError": Told("The network has no way to that address, as seen from the process."),
    "SchemeNotSupported": Told("A URL begins with neither http: nor https:."),
}

_OF_SQLITE: Final = {
    "OperationalError": Told("SQLite did not do what was asked, for the reason in its text."),
    "InternalError": Told("SQLite reports a fault of its own.", "PRAGMA integrity_check tells of its file"),
    "InterfaceError": Told(
        "SQLite's driver was asked for what it cannot do: by its kind a fault of the release.", _SEARCH
    ),
    "ProgrammingError": Told(
        "SQLite's driver was asked for what it cannot do: by its kind a fault of the release.", _SEARCH
    ),
    "NotSupportedError": Told(
        "The SQLite of this system is too old for what this release asks of it.",
        "update SQLite and Python's own copy of it, or move to PostgreSQL (synapse_port_db)",
    ),
}
"""What is said otherwise of an exception of SQLite."""


MEANINGS: Final = frozenset(
    one.means
    for one in (_EMPTY, _PROGRAM, _UNFIT_MODULE, _ASSERTION, *_BY_NAME.values(), *_OF_SQLITE.values())
)
"""All that is said of exceptions by their class."""


def class_of(exception: str) -> tuple[str, str]:
    """Return the class of an exception that was printed, and its text; "" for what is none."""
    if found := _WRAPPED.search(exception):
        return found["name"], found["told"]
    found = _CLASS.match(exception)
    return (found["name"], found["told"].removeprefix(":").strip()) if found else ("", "")


def told_of_exception(exception: str, frames: Sequence[str]) -> Told | None:
    """Return what an exception means by its class, and by the last file of Synapse in its traceback."""
    name, _ = class_of(exception)
    if name in _OF_PROGRAM or name in ("KeyError", "ValueError"):
        if frames and frames[-1].startswith(_CONFIGURATION):
            return _EMPTY
        if name == "TypeError" and _OF_MODULE.search(exception):
            return _UNFIT_MODULE
        if name in _OF_PROGRAM:
            return _PROGRAM
    if name == "AssertionError":
        return _ASSERTION
    of_sqlite = _OF_SQLITE.get(name) if exception.startswith("sqlite3.") else None
    return of_sqlite or _BY_NAME.get(name)


_NOT_PYTHON: Final = re.compile(
    r"Cannot (?:read|set|destructure)|is not a (?:function|constructor)|undefined|fetch failed|Invalid URL"
)
"""What an exception of JavaScript says that has the name of one of Python."""


def told_alone(line: str) -> Told | None:
    """Return what an exception means that stands in a line alone, without its traceback."""
    name, text = class_of(line)
    if name in ("", "Error") or not text or _NOT_PYTHON.search(text):
        return None
    return told_of_exception(line, ())


def told_of_configuration(frames: Sequence[str]) -> Told | None:
    """Return what it means that the program failed at all where it read its configuration."""
    return _EMPTY if frames and frames[-1].startswith(_CONFIGURATION) else None


_DATASTORES: Final = frozenset(
    ("synapse/storage/data_stores/__init__.py", "synapse/storage/databases/__init__.py")
)


def told_of_cut(frames: Sequence[str]) -> Told | None:
    """Return what was about to be done where a traceback was cut off, by its last files of Synapse."""
    if len(frames) > 1 and frames[-2] in _DATASTORES and frames[-1] == "synapse/storage/database.py":
        return Told(
            "The process was about to connect to the database at its start: it did not reach it, or was not"
            " let in; the cut line tells which.",
            "see that PostgreSQL runs, and that host, port, user, password and database under database: args"
            " are right as seen from the process (in a container: the other container's name, not localhost)",
        )
    if list(frames[-2:]) == ["synapse/storage/background_updates.py", "synapse/storage/database.py"]:
        return Told(
            "The row of an update of the database in the background was looked for, or changed. If the line"
            " that is missing has No row found, another process did that update meanwhile: two main processes"
            " run on this database.",
            (
                "see that one main process alone, and no spare one, has this database; with a single one the"
                " words of PostgreSQL in that line count"
            ),
        )
    if frames and frames[-1].startswith(_CONFIGURATION):
        return Told(
            "The process was reading its configuration: a file is no valid YAML, or an option is wrong; the"
            " cut line tells which, and where.",
            (
                "see whether each file can be read: python3 -c 'import sys, yaml;"
                " yaml.safe_load(open(sys.argv[1]))' homeserver.yaml names the line of a slip. If all can:"
                " the last file of synapse/config/ in the traceback has the name of the section"
            ),
        )
    return next((told for files, told in _AT_THE_END if frames and frames[-1] in files), None)


_AT_THE_END: Final = (
    (
        ("synapse/storage/database.py", "synapse/storage/_base.py"),
        Told(
            "The last that the text shows is a statement to the database. Whether it failed, or what came"
            " after it, the line that is missing tells.",
            (
                "if that line has psycopg2: see PostgreSQL's log of that moment, which has an error of a"
                " statement too, with its text"
            ),
        ),
    ),
    (
        tuple(
            f"synapse/storage/{folder}main/events_worker.py" for folder in ("databases/", "data_stores/", "")
        ),
        Told(
            "Events were being looked up, in the cache or in the database.",
            (
                "see what the line that is missing has: with NotFoundError or Could not find event the"
                " database lacks that event (as after a purge, or a backup that was loaded); with psycopg2"
                " PostgreSQL's log of that moment tells more"
            ),
        ),
    ),
    (
        ("synapse/handlers/sync.py",),
        Told(
            "An answer to a /sync was being put together: the client asks again with the same token, and has"
            " nothing new until that succeeds.",
            "see whether it is one user alone, or all: the lines of /sync in the log name them",
        ),
    ),
    (
        ("synapse/handlers/federation_event.py", "synapse/handlers/federation.py"),
        Told(
            "Events of a room that other homeservers are in were being fetched, made, checked or stored.",
            "see whether it is one room alone, as far as the lines of the log before it name one",
        ),
    ),
)
"""What was being done where a traceback was cut off, by its last file of Synapse."""
