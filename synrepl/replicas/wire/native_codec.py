"""The codecs of the native dialect."""

from functools import lru_cache

from synrepl.replicas.wire.native import NATIVE_COMMANDS
from synrepl.wire.codec import COMMANDS, Codec
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import Side


@lru_cache
def native_codec(*, ours: Side, theirs: Side) -> Codec:
    """Return the codec that all native connections of this direction share."""
    commands = {**COMMANDS, **{command.NAME: command for command in NATIVE_COMMANDS}}
    return Codec(NATIVE, ours=ours, theirs=theirs, commands=commands)
