"""How a server serves, by release: the one table that decides it.

Before 1.13 a follower asks for each stream by name and token, and the server pushes what it missed, then
POSITION. From 1.13 on it gets every row from the moment it is connected, REPLICATE only asks for positions,
and what it missed it pulls over HTTP; from 1.22 on POSITION says where it continues from.
"""

from typing import Any, Final, Protocol

import msgspec

from synrepl.streams.stream import Stream
from synrepl.wire.commands import Replicate
from synrepl.wire.dialect import Dialect, Span, span

__all__ = ["ServedReader", "ServeStrategy", "serving"]


class ServedReader(Protocol):
    """What a way of serving can do with one reader."""

    def known_streams(self) -> list[Stream[Any]]:
        """The streams that the reader's release knows, and that are held here."""

    def push_from(self, stream: Stream[Any], token: int | None) -> None:
        """Send what this stream has after `token` (None: nothing), then its POSITION, then what comes."""

    def push_everything(self) -> None:
        """From now on send every row of every stream."""

    def say_positions(self) -> None:
        """Send the position of every stream and writer, once all that lies before it is sent."""

    def refuse_stream(self, name: str) -> None:
        """Send ERROR, as this stream is none of `known_streams`, and close."""


class ServeStrategy(msgspec.Struct, frozen=True):
    """One way of serving.

    `pulls`: the follower fetches what it missed by itself, over HTTP. `certifies`: POSITION says from where
    on, so it can move a position over facts that hold nothing for this follower. `relays`: it is no follower
    but a replica.
    """

    pulls: bool
    certifies: bool
    relays: bool = False

    def start(self, reader: ServedReader) -> None:
        """The reader's dialect has become known."""
        if self.pulls:
            reader.push_everything()

    def replicate(self, reader: ServedReader, command: Replicate) -> None:
        """The reader sent REPLICATE."""
        if self.pulls:
            reader.say_positions()
            return
        streams = {stream.name: stream for stream in reader.known_streams()}
        if command.stream == "ALL" and streams:
            for stream in streams.values():
                reader.push_from(stream, command.token)
        elif command.stream in streams:
            reader.push_from(streams[command.stream], command.token)
        else:
            reader.refuse_stream(command.stream or "")


_TABLE: Final[tuple[tuple[Span, ServeStrategy], ...]] = (
    (span(until="1.13"), ServeStrategy(pulls=False, certifies=False)),
    (span(since="1.13", until="1.22"), ServeStrategy(pulls=True, certifies=False)),
    (span(since="1.22", until="999.0"), ServeStrategy(pulls=True, certifies=True)),
    (span(since="999.0"), ServeStrategy(pulls=True, certifies=True, relays=True)),
)


def serving(dialect: Dialect) -> ServeStrategy:
    """How this release is served."""
    return next(way for releases, way in _TABLE if dialect.release in releases)
