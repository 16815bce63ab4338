"""Why PostgreSQL did not let a process in: the words of its refusal, and what to change."""

import re
from typing import Final

from synrepl.homeserver.explanation.hidden_names import is_hidden, shown_address
from synrepl.wire.text import printable

_SETTINGS: Final = "database: args in homeserver.yaml"

_REFUSALS: Final = (
    (
        (
            r'no pg_hba\.conf entry for host "(?P<host>[^"]{1,100})", user "(?P<user>[^"]{1,100})", '
            r'database "(?P<database>[^"]{1,100})"(?P<tls>, (?:SSL off|no encryption))?'
        ),
        "PostgreSQL's pg_hba.conf has no line that lets {user} from {host} into the database {database}.",
        (
            "add one to pg_hba.conf, as: host {database} {user} {host}/{bits} scram-sha-256, and let"
            " PostgreSQL read it again: SELECT pg_reload_conf()"
        ),
    ),
    (
        r'Peer authentication failed for user "(?P<user>[^"]{1,100})"',
        (
            "Over its socket PostgreSQL lets a user of the system in as the role of the same name alone"
            " (peer), and this process does not run as {user}."
        ),
        f"set host: 127.0.0.1 and the password in {_SETTINGS}, or a line of pg_hba.conf with another method",
    ),
    (
        r'Ident authentication failed for user "(?P<user>[^"]{1,100})"',
        "pg_hba.conf asks the system who connects (ident), and it did not say {user}.",
        "write scram-sha-256 (or md5) in place of ident in that line of pg_hba.conf, and reload PostgreSQL",
    ),
    (
        r'password authentication failed for user "(?P<user>[^"]{1,100})"',
        "The password of {user} is not that which PostgreSQL has, or there is no such role.",
        (
            f"compare password in {_SETTINGS} with the role: ALTER ROLE {{user}} PASSWORD '...'. The image of"
            " PostgreSQL takes POSTGRES_PASSWORD only when it makes an empty folder of data: later changes of"
            " it do nothing"
        ),
    ),
    (
        r'role "(?P<user>[^"]{1,100})" does not exist',
        "PostgreSQL has no role {user}.",
        f"createuser {{user}}, or correct user in {_SETTINGS}: without it the system's user counts",
    ),
    (
        r'database "(?P<database>[^"]{1,100})" does not exist',
        "PostgreSQL has no database {database}.",
        (
            "createdb --encoding=UTF8 --locale=C --template=template0 --owner=USER {database}, or correct"
            f" database in {_SETTINGS}"
        ),
    ),
    (
        r"no password supplied",
        "PostgreSQL wants a password, and this process has none.",
        f"set password in {_SETTINGS}",
    ),
)
"""What PostgreSQL says, what it means, and what to do."""

_LOOPBACK: Final = "::1 is what localhost may mean: host: 127.0.0.1 uses the line for that address"
_NO_TLS: Final = (
    "lines that begin with hostssl let in with TLS alone: set sslmode: require, or write host there"
)


def told_of_login(text: str) -> tuple[list[str], list[str]] | None:
    """Return what is said of a login that PostgreSQL refused, and what to do; None if it says otherwise."""
    for pattern, told, step in _REFUSALS:
        if (found := re.search(pattern, text, re.ASCII)) is None:
            continue
        values = {
            name: name.upper() if is_hidden(value) else printable(value)
            for name, value in found.groupdict("").items()
        }
        host = values["host"] = shown_address(values["host"]) if "host" in values else ""
        values["bits"] = "128" if ":" in host else "32"
        more = [_LOOPBACK] if host == "::1" else []
        more += [_NO_TLS] if values.get("tls") else []
        return [told.format(**values)], [step.format(**values), *more]
    return None
