"""What is checked of an append before anything of it is queued."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from synrepl.errors import StorageError
from synrepl.storage.append_errors import FROM_TABLE, GivenElsewhere, append_error
from synrepl.streams.catalog import ATOMIC_APPENDS, DECLARATIONS, FILES, PROMISES, REFUSED, takes
from synrepl.streams.origin import Origin

MAX_NAME_BYTES = 1024
"""Limit for stream names, writer names and idempotency keys."""
MAX_OWNER_BYTES = 512
"""Limit for the owner of an idempotency key: with a stream and a key it fits in a PostgreSQL index entry."""


_WAYS_OUT: Final = {
    ATOMIC_APPENDS.name: "the daemon itself writes it, with each atomic append",
    DECLARATIONS.name: "it holds declarations only: use synrepl streams create, or POST /v1/streams",
    FILES.name: "its facts are appended over HTTP only",
    REFUSED.name: "it holds facts that the daemon could not read",
    PROMISES.name: "it holds what the daemon promises to appends with acks",
}
"""Why a stream does not take facts from everywhere."""


class AppendChecks:
    """Says why an append is refused; each check returns the error, or None. See `Log` for the parameters."""

    def __init__(
        self, *, assigned: Mapping[str, str] | Collection[str], append_refusal: Callable[[str, str], str]
    ) -> None:
        self._assigned = assigned if isinstance(assigned, Mapping) else dict.fromkeys(assigned, FROM_TABLE)
        self._append_refusal = append_refusal
        self._valid_names: set[str] = set()

    def check_names(self, stream: str, writer: str) -> StorageError | None:
        """Whether the names can be stored, and sent as words of a line."""
        if stream in self._valid_names and writer in self._valid_names:
            return None
        for name in (stream, writer):
            if name.split() != [name] or not _is_storable(name, MAX_NAME_BYTES):
                why = f"the name {name[:100]!r} must be one word of up to {MAX_NAME_BYTES} bytes, no NUL"
                return append_error(stream, why)
            self._valid_names.add(name)
        return None

    @staticmethod
    def check_origin(stream: str, origin: Origin) -> StorageError | None:
        """Whether the stream takes facts that come in this way."""
        return None if takes(stream, origin) else GivenElsewhere(stream=stream, why=_WAYS_OUT[stream])

    def check_writer(self, stream: str, writer: str) -> StorageError | None:
        """Whether this writer may append facts without tokens to this stream now."""
        if stream in self._assigned:
            return GivenElsewhere(stream=stream, why=self._assigned[stream])
        if why := self._append_refusal(stream, writer):
            return GivenElsewhere(stream=stream, why=why)
        return None

    @staticmethod
    def check_key(stream: str, key: str | None, owner: str) -> StorageError | None:
        """Whether the idempotency key and its owner can be stored."""
        if key is None and not owner:
            return None
        if key is not None and not _is_storable(key, MAX_NAME_BYTES):
            why = f"idempotency key {key[:100]!r} must be text without NUL, of at most {MAX_NAME_BYTES} bytes"
            return append_error(stream, why)
        if not _is_storable(owner, MAX_OWNER_BYTES):
            why = f"the owner of the key, {owner[:100]!r}, must have at most {MAX_OWNER_BYTES} bytes, no NUL"
            return append_error(stream, why)
        return None


def _is_storable(name: str, limit: int) -> bool:
    """Whether every database can store this name. A bad name would fail its whole group."""
    try:
        return len(name.encode()) <= limit and "\0" not in name
    except UnicodeEncodeError:
        return False
