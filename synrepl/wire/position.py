"""Position in a log: epoch, serial and digest together."""

from typing import Annotated

import msgspec

from synrepl.wire.kinds import MAX_INTEGER, MIN_INTEGER

Int64 = Annotated[int, msgspec.Meta(ge=MIN_INTEGER, le=MAX_INTEGER)]
"""An integer that fits a database column. JSON integers are unbounded."""

Natural64 = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""An epoch, a serial or a count: an integer of at least 0 that fits a database column."""


class LogPosition(msgspec.Struct, frozen=True):
    """A position in a history.

    If two logs have had the same epoch, serial and digest, their facts up to that serial are the same.
    """

    epoch: Natural64
    serial: Natural64
    digest: str
