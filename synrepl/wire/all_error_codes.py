"""The error codes of the core and of all installed rooms."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from synrepl.rooms import rooms
from synrepl.wire.error_codes import ERROR_CODES, ErrorCode


@cache
def all_error_codes() -> Mapping[str, ErrorCode]:
    """Return what each code means, those of the core first."""
    others = {code: kind for room in rooms() for code, kind in room.error_codes().items()}
    return MappingProxyType(ERROR_CODES | others)
