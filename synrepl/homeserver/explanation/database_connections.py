"""What the system, PostgreSQL and PgBouncer say of a connection that was lost, refused or not made at all."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.wire.text import printable


class _Cause(NamedTuple):
    """What the system says, what that means, and what to do."""

    words: re.Pattern[str]
    means: str
    do: tuple[str, ...]


def _cause(words: str, means: str, *do: str) -> _Cause:
    return _Cause(re.compile(words, re.ASCII), means, do)


_SYSTEM: Final = (
    r"(?:SSL SYSCALL error|could not (?:receive data from|send data to) (?:the )?server"
    r"|consuming input failed|sending (?:query|data) failed): "
)
"""What libpq and psycopg write before the system's own words."""

_AGAIN: Final = "The process makes a new connection; what it had committed stays."
_SILENCE: Final = r"(?:Operation|Connection) timed out"
_NO_WAY: Final = r"No route to host|Network is unreachable|Host is unreachable"

_LOST: Final = (
    _cause(
        rf"{_SYSTEM}(?:{_SILENCE})",
        (
            "There was no answer on a connection to PostgreSQL until the system of this process gave it up:"
            " a firewall or a router with NAT between forgot the connection, as they do with idle ones, or"
            " the machine of PostgreSQL is gone or was cut off. It is no fault of the statement that met it,"
            f" of psycopg or of Synapse. {_AGAIN}"
        ),
        (
            "let the system ask on idle connections before they are forgotten: keepalives_idle: 60,"
            " keepalives_interval: 10 and keepalives_count: 3 under database: args in homeserver.yaml, and"
            " tcp_keepalives_idle = 60 in postgresql.conf for the other end"
        ),
        (
            "look at PostgreSQL's log and at its machine at that time: did it restart, move or fail over?"
            " And at what is between: the idle time of the firewall, the load balancer or the tunnel"
        ),
    ),
    _cause(
        rf"{_SYSTEM}Connection reset",
        (
            "The other end of a connection to PostgreSQL answered with a reset: its process crashed or was"
            " killed, or its machine started anew and knows no such connection, or a pooler, proxy or"
            f" firewall between ended it. {_AGAIN}"
        ),
        (
            "look at PostgreSQL's log of that time: a crash (signal 9: the system had no memory left, signal"
            " 11) or a restart is there. If nothing is: look at what is between, and at its limit of idle"
            " time"
        ),
    ),
    _cause(
        rf"{_SYSTEM}(?:EOF detected|Success|Undefined error: 0)",
        (
            "The other end closed a connection to PostgreSQL without a word of why: PostgreSQL was stopped,"
            " or its process crashed or was killed, or a pooler, proxy or load balancer between closed it, as"
            f" for idle time. {_AGAIN}"
        ),
        (
            "look at PostgreSQL's log of that time: a restart is normal, a crash (signal 9: the system had no"
            " memory left, signal 11) is not. If nothing is there: look at the pooler's or proxy's log, and"
            " at its limit of idle time"
        ),
    ),
    _cause(
        rf"{_SYSTEM}Broken pipe",
        (
            "The process wrote on a connection to PostgreSQL that had ended before: it noticed only now, with"
            f" the next statement. {_AGAIN}"
        ),
        (
            "look for why it ended in the first such line before this one, and in PostgreSQL's log: a"
            " restart, a limit of idle time (idle_session_timeout, or of a pooler or proxy between)"
        ),
    ),
    _cause(
        rf"{_SYSTEM}(?:{_NO_WAY})",
        (
            "The network of this process has no way to PostgreSQL's machine any more: the machine or its"
            " network is down, or a firewall refuses the way."
        ),
        (
            "see whether the machine is up, and the way to it from where the process runs: ip route get"
            " ADDRESS, and the firewall on both sides"
        ),
    ),
    _cause(
        rf"{_SYSTEM}Bad file descriptor",
        (
            "The connection was closed in this process itself, while it was in use: two processes share it,"
            " as after a fork once it was made, or two threads do, and one of them closed it. The network and"
            " PostgreSQL have no part in it."
        ),
        (
            "connect after the fork, never before: a program or module of your own opens its own connections"
            " in each process. Of Synapse alone, with one process for each worker: restart it, and report it"
        ),
    ),
)

_UNREACHED: Final = (
    _cause(
        r"Connection refused",
        (
            "PostgreSQL was not reached: the machine answers, but nothing listens at that address and port,"
            " or a firewall refuses it."
        ),
        (
            "see whether PostgreSQL (or the pooler there) runs, and listens at the host and port of database:"
            " args in homeserver.yaml (listen_addresses, the container's network; localhost in a container is"
            " the container itself)"
        ),
    ),
    _cause(
        rf"{_SILENCE}|timeout expired",
        (
            "PostgreSQL was not reached: there was no answer at all from that address. A firewall drops what"
            " is sent there, the address is wrong, or the machine is down; a server that runs and is only"
            " not started would refuse at once."
        ),
        (
            "try the way from where the process runs: nc -vz HOST 5432. Look at the firewall or security"
            " group between, and at host and port of database: args in homeserver.yaml"
        ),
    ),
    _cause(
        _NO_WAY,
        (
            "PostgreSQL was not reached: the network has no way to that address, its machine is down, or a"
            " firewall refuses the way."
        ),
        (
            "see the way from where the process runs: ip route get ADDRESS; the container's network, and the"
            " firewall. For an address of IPv6 without IPv6 here: set host to that of IPv4"
        ),
    ),
    _cause(
        r"No such file or directory",
        (
            "PostgreSQL was not reached: there is no socket at that path. PostgreSQL does not run, keeps its"
            " socket in another folder or for another port, or runs in another container."
        ),
        (
            "SHOW unix_socket_directories in psql tells the folder: set host to it under database: args in"
            " homeserver.yaml, or host: 127.0.0.1; a container needs that folder mounted"
        ),
    ),
    _cause(
        r"Permission denied",
        "PostgreSQL was not reached: the user of this process may not use that socket.",
        "look at the rights of the socket and its folder (unix_socket_permissions, unix_socket_group)",
    ),
)

_ANSWERED: Final = re.compile(r"\b(?:FATAL|ERROR|PANIC):\s+(?P<what>.+)", re.DOTALL)
"""What a server says itself, behind its address."""


def _lost(match: Match, writers: Writers) -> Passage | None:
    """Explain a connection that was lost by what the system said of it."""
    return _by_cause(match, _LOST)


def _unreached(match: Match, writers: Writers) -> Passage | None:
    """Explain a server that was not reached, or one that was, and refused for a reason that is not known."""
    if (said := _ANSWERED.search(match.text)) is None:
        return _by_cause(match, _UNREACHED)
    words = (
        "PostgreSQL, or a pooler before it, was reached and answered: it refused the connection, for a reason"
        f" that is not known here: {excerpt(said['what'])}"
    )
    step = "look at the log of PostgreSQL, and of the pooler, at that time: who refuses writes why"
    return passage_of(match, [words], [step], [])


def _by_cause(match: Match, causes: tuple[_Cause, ...]) -> Passage | None:
    cause = next((one for one in causes if one.words.search(match.text)), None)
    return None if cause is None else passage_of(match, [cause.means], list(cause.do), [])


_PARAMETER: Final = re.compile(
    r"unsupported startup parameter(?P<inner> in options)?: (?P<name>[A-Za-z_][\w.]{0,62})", re.ASCII
)


def _parameter(match: Match, writers: Writers) -> Passage | None:
    """Explain a setting that PgBouncer does not take, by its name."""
    if (found := _PARAMETER.search(match.text)) is None:
        return None
    name = printable(found["name"])
    words = [
        (
            f"PgBouncer refuses the connection: whoever connects asks for {name} at once, and PgBouncer"
            " passes on only the settings that it keeps track of. PostgreSQL was not asked."
        )
    ]
    where = "database: args in homeserver.yaml, or the environment of the process (PGOPTIONS)"
    if found["inner"]:
        words.append(
            "It stands in options (-c). 1.20.0 of PgBouncer looks into options, so that options itself in"
            " ignore_startup_parameters suffices no longer there; the release after it mended that"
            " (pgbouncer/pgbouncer#908)."
        )
        where = "options under database: args in homeserver.yaml, or of PGOPTIONS in the environment"
    advice = [
        (
            f"name it in [pgbouncer] of pgbouncer.ini, beside what is there: ignore_startup_parameters ="
            f" extra_float_digits, {name}; then RELOAD. It is ignored then: {name} is not set for that"
            " connection, and PostgreSQL's own value counts"
        ),
        (
            f"if it must be set: take it out of {where}, and set it in PostgreSQL: ALTER ROLE synapse SET"
            f" {name} = '...' (or ALTER DATABASE synapse SET); or connect to PostgreSQL without the pooler"
        ),
    ]
    return passage_of(match, words, advice, [])


def _pooler_file(match: Match, writers: Writers) -> Passage | None:
    """Explain the head of PgBouncer's section, which stands alone; a container may be named so too."""
    if match.text.strip() != "[pgbouncer]":
        return None
    return passage_of(match, [match.message.means], [match.message.do], [])


DETAILS: Final[Mapping[str, Detail]] = {
    "db_lost": _lost,
    "db_unreachable": _unreached,
    "db_pooler_parameter": _parameter,
    "db_pooler_file": _pooler_file,
}
"""What explains messages by their values, by the key of the message."""
