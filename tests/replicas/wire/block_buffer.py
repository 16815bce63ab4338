"""Bytes of a native connection, as its receiver takes them apart."""

from collections.abc import Iterator

from synrepl.errors import RemoteProtocolError
from synrepl.replicas.native_receiver import NativeReceiver
from synrepl.replicas.wire.blocks import Payload

__all__ = ["BlockBuffer"]


class BlockBuffer:
    """Splits received bytes into lines and blocks, as a replica does."""

    is_closed = False

    def __init__(self) -> None:
        self._found: list[list[bytes] | Payload] = []
        self._receiver = NativeReceiver(self, self._found.append)

    def take_lines(self, lines: list[bytes]) -> None:
        self._found.append(lines)

    def fail(self, why: str) -> None:
        raise AssertionError(why)

    def runs(self, data: bytes) -> Iterator[list[bytes] | Payload]:
        """Yield the blocks that are now complete, and the lines between them as runs.

        Raises RemoteProtocolError for malformed input, once what came before it is yielded.
        """
        violation = ""
        try:
            self._receiver.dataReceived(data)
        except RemoteProtocolError as error:
            violation = error.why
        found = list(self._found)
        self._found.clear()
        yield from found
        if violation:
            raise RemoteProtocolError(violation)
