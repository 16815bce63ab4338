"""The settings of the log."""

import dataclasses
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from synrepl.base.settings import setting, text
from synrepl.errors import ConfigError


def parse_database(value: Any) -> str:
    """Check ``sqlite:PATH`` or a PostgreSQL URL without a password. Raises `ConfigError`."""
    url = text(value)
    kind, _, rest = url.partition(":")
    if kind in ("postgresql", "postgres"):
        return _postgres(url, rest)
    if url.startswith("sqlite://"):
        path = "/" + url.removeprefix("sqlite:").lstrip("/")
        raise ConfigError(f"must be sqlite:PATH without //; did you mean sqlite:{path} or sqlite:{path[1:]}?")
    if why := other_notation(kind):
        raise ConfigError(f"must be postgresql://user@host/database, {why}")
    if kind != "sqlite":
        hint = "" if rest else f"; did you mean sqlite:{kind}?"
        raise ConfigError(
            "must be sqlite:PATH, such as sqlite:synrepl.db or sqlite:/var/lib/synrepl.db, or postgresql://...,"
            f" not {kind + '://...' if rest.startswith('//') else repr(url)}{hint}"
        )
    if url == "sqlite:" or url.endswith("/"):
        raise ConfigError(f"needs the path of a file after sqlite:, not {url!r}")
    return url


def other_notation(start: str) -> str:
    """Why this beginning of an address is that of PostgreSQL in the notation of others; "" if it is not.

    Nothing of it is quoted: it may contain a password.
    """
    if start == "jdbc" or start.startswith(("postgresql+", "postgres+")):
        return "and this is the notation of another library: leave out what names it (jdbc:, +psycopg2)"
    if re.search(r"(?:^|\s)(?:host|dbname|user|service)\s*=", start):
        return "and not words with =: put host, user and dbname into the URL, and others behind ?"
    return ""


def _postgres(url: str, rest: str) -> str:
    """Check a PostgreSQL URL. No message quotes the URL: it may contain a password."""
    if not rest.startswith("//"):
        raise ConfigError("must be postgresql://user@host/database, with // after the colon")
    try:
        parts = urlsplit(url)
        # A password may contain a slash that should have been written as %2F.
        has_password = ":" in rest.partition("?")[0].rpartition("@")[0]
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError("must be a URL such as postgresql://user@host/database") from None
    if has_password or any(name in ("password", "sslpassword") for name, _ in query):
        raise ConfigError(
            "contains a password, which other users of the machine could see: put the password into a pgpass"
            " file, and set ?passfile=/path or PGPASSFILE"
        )
    if parts.fragment or url.split() != [url]:
        raise ConfigError("must be a URL without spaces and #, such as postgresql://user@host/database")
    return url


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Where the log is stored."""

    database: str = setting(
        "sqlite:synrepl.db",
        "The database of the log: sqlite:relative.db, sqlite:/absolute/path.db or postgresql://user@host/database.",
        parse=parse_database,
        metavar="URL",
    )

    @property
    def database_path(self) -> Path:
        """The path of the SQLite file. With PostgreSQL: the stem of the names of local files."""
        is_sqlite = self.database.startswith("sqlite:")
        return Path(self.database.removeprefix("sqlite:")) if is_sqlite else Path("synrepl")
