"""What a peer may publish on a channel that this daemon serves, by the rights and instances of its key."""

from synrepl.base.access import Access
from synrepl.base.rights import command_refusal, command_refusals
from synrepl.base.run_owners import RunOwners
from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import COMMANDS, codec_of
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER
from synrepl.wire.text import printable

_codec = codec_of(NEWEST, ours=BROKER, theirs=BROKER)


def line_refusal(access: Access, line: bytes, runs: RunOwners | None) -> str:
    """Return why the peer may not publish this line; empty if it may.

    Rows and positions must be of an instance of the key. Other commands take what they take of a follower;
    `runs` is as for `command_refusal`. A line that is no command is passed: all processes ignore it.
    """
    writer = writer_of(line)
    if writer is not None:
        is_own = access.instances is None or writer in access.instances
        return "" if is_own else f"the key {access.name} may not publish as {printable(writer, limit=100)}"
    command = COMMANDS.get(line.partition(b" ")[0].decode("ascii", "replace"))
    if command is None:
        return ""
    if not (command.INSTANCE or command.RUN):
        return command_refusals(access).get(command, "")
    try:
        return command_refusal(access, _codec.parse(line), runs)
    except RemoteProtocolError as error:
        # Peers may read it in another way, and take it for another instance's.
        return "" if access.instances is None else error.why


def writer_of(line: bytes) -> str | None:
    """Return the writer of a row or position, empty if it names none; None for another line."""
    if not line.startswith((b"RDATA ", b"POSITION ")):
        return None
    return b"".join(line.split(b" ", 3)[2:3]).decode("utf-8", "replace")
