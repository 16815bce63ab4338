"""Native commands: handshake, snapshot and subscription between two synrepl daemons.

The replica speaks first; a server sends these commands only after HELLO. All are lines, like every other
command. Large data follows a `Block` line, which announces its exact length in bytes.

::

    replica                                      upstream
    HELLO      identity, secret             -->
                                            <--  WELCOME     history, position
    JOIN       a new snapshot, or resume    -->
                                            <--  JOINING     position of the snapshot
                                            <--  BLOCK facts ... BLOCK snapshot, BLOCK facts ...
                                            <--  JOINED      final position
    SUBSCRIBE  own position, filter         -->
                                            <--  SUBSCRIBED, LINKED
                                            <--  BLOCK facts, HEARTBEAT ...
    ACK        durable position             -->
    UP         a follower's command         -->
                                            <--  TAKEN       number of the last accepted command
                                            <--  DOWN        a command for all processes
    CHANNEL    it serves the channel too    -->
                                            <--  BLOCK channel ...
    PUBLISH    a line published there       -->

Instead of any answer the upstream may send REFUSED with a reason, and then close the connection.

HELLO has the secret of the replica as it is. So a replica connects over TLS, a UNIX socket or loopback
(`synrepl.key_rules`).
"""

from typing import Final
from zlib import crc32

import msgspec
from msgspec.structs import astuple

from synrepl.replicas.error_codes import REFUSALS
from synrepl.wire.dialect import NATIVE
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import CLIENT, SERVER, Command, command, field, json_command
from synrepl.wire.kinds import Body, Integer, Rest, Word
from synrepl.wire.position import Int64, LogPosition, Natural64
from synrepl.wire.scope import ALL_STREAMS, NAMED_STREAMS
from synrepl.wire.text import check_printable

VERSION: Final = 3
"""Version of the native commands. The handshake of versions 1 and 2, up to release 26.11, is not spoken."""

VERSION_NEEDED: Final = "a release after 26.11.1"
"""The first release that speaks this version."""

CAPABILITIES: Final = ("digests", "ephemeral", "peers", "receipts")
"""Capabilities that are assumed for a peer that announces none. Messages of other capabilities are only
sent to peers that announce them."""

COMMANDS: Final = "commands"
"""The capability to forward commands of followers (UP, TAKEN, DOWN)."""

KEYS: Final = "keys"
"""The capability to take issued keys (the block ``keys``)."""

ATOMIC: Final = "atomic"
"""The capability to store atomic appends as a whole, by the facts of ``atomic_appends``."""

BACKUP: Final = "backup"
"""The capability of an upstream to tell backups from replicas (`base.history.BACKUP_PREFIX`)."""

LINKED: Final = "linked"
"""The capability to tell, and be told, whether the upstream is linked to the primary (LINKED)."""

OWN_CAPABILITIES: Final = (*CAPABILITIES, COMMANDS, KEYS, ATOMIC, BACKUP, LINKED)
"""Capabilities of this daemon. They are always announced, as the default (`CAPABILITIES`) cannot change."""

CHANNEL: Final = "channel"
"""The capability of an upstream to pass the channel that it serves at its RESP port (CHANNEL)."""

MAX_PATH: Final = 16
"""How many daemons above it a daemon names."""

SINCE: Final = "999.0"


@json_command("HELLO", sent_by=CLIENT, right="replicate", since=SINCE)
class Hello(Command, frozen=True, kw_only=True, omit_defaults=True):
    """The replica's identity. `address` is its own address.

    `secret` is the shared secret, that of its key in the keys file, or its issued key as it is shown
    (``NAME.SECRET``); empty if it has none, or a certificate. `keys` is the digest of the issued keys that it
    knows; empty if it knows none.
    """

    uuid: str
    name: str
    version: Int64 = 1
    registered: bool = True
    address: str = ""
    capabilities: tuple[str, ...] = CAPABILITIES
    secret: str = ""
    keys: str = ""

    EXAMPLES = {NATIVE: 'HELLO {"uuid":"u","name":"replica1","version":3,"secret":"laptop.Zm9v..."}'}

    def __repr__(self) -> str:
        return f"Hello(uuid={self.uuid!r}, name={self.name!r}, ...)"

    @property
    def listed_name(self) -> str:
        """The name on the list of replicas: the uuid, if the replica has no name."""
        return self.name or self.uuid


@json_command("WELCOME", sent_by=SERVER, since=SINCE)
class Welcome(Command, frozen=True, kw_only=True, omit_defaults=True):
    """The upstream's identity, its history and position, and the last trimmed serial.

    `address` is the upstream's own address, `primary` that of the primary, as far as the upstream knows it.
    `path` has the uuids of the daemons that the upstream follows, the nearest first; empty from a primary,
    and from older daemons. `tables` are the streams that the primary reads from the homeserver's tables: in
    these a writer may be ahead of others. `floor`: every token that a primary gives is above it.
    """

    history: str
    uuid: str
    instance: str
    server_name: str
    role: str
    position: LogPosition
    trimmed_upto: Natural64
    filter: Filter = ALL
    address: str = ""
    primary: str = ""
    version: Int64 = 1
    capabilities: tuple[str, ...] = CAPABILITIES
    path: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    floor: Natural64 = 0

    EXAMPLES = {
        NATIVE: (
            'WELCOME {"history":"h","uuid":"u","instance":"primary",'
            '"server_name":"example.org","role":"primary","position":{"epoch":1,"serial":9,"digest":"e"},"trimmed_upto":0}'
        )
    }

    def check(self) -> None:
        """Raises `RemoteProtocolError` unless all texts pass `is_address`: status and log show them."""
        names = (*self.path[:MAX_PATH], *self.tables)
        check_printable(*(text for text in astuple(self) if isinstance(text, str)), *names)


@json_command("JOIN", sent_by=CLIENT, right="replicate", stream=NAMED_STREAMS, since=SINCE)
class Join(Command, frozen=True, kw_only=True, omit_defaults=True):
    """A request for a snapshot. With `join`, resume that interrupted snapshot after `position`.

    `has_meta`: the replica has received the metadata of the snapshot.
    """

    filter: Filter = ALL
    join: str = ""
    position: LogPosition | None = None
    has_meta: bool = False

    EXAMPLES = {NATIVE: "JOIN {}"}


@json_command("JOINING", sent_by=SERVER, since=SINCE)
class Joining(Command, frozen=True, kw_only=True):
    """A snapshot of this `position` follows, without facts up to serial `after`, which the replica has.

    `join` names the snapshot. The log is trimmed up to `trimmed_upto`.
    """

    join: str
    history: str
    position: LogPosition
    trimmed_upto: LogPosition
    after: Natural64
    resumed: bool

    EXAMPLES = {
        NATIVE: (
            'JOINING {"join":"j","history":"h","position":{"epoch":1,"serial":7,"digest":"d"},'
            '"trimmed_upto":{"epoch":1,"serial":0,"digest":"z"},"after":0,"resumed":false}'
        )
    }


@json_command("JOINED", sent_by=SERVER, since=SINCE)
class Joined(Command, frozen=True):
    """The snapshot is complete up to `position` and can be adopted."""

    position: LogPosition

    EXAMPLES = {NATIVE: 'JOINED {"position":{"epoch":1,"serial":7,"digest":"d"}}'}


@json_command("SUBSCRIBE", sent_by=CLIENT, right="replicate", stream=NAMED_STREAMS, since=SINCE)
class Subscribe(Command, frozen=True, kw_only=True, omit_defaults=True):
    """The replica's position, and the facts that it wants after it.

    `epoch_start` is where its epoch began, and `began_ms` when. They distinguish two daemons that were
    promoted to the same epoch at the same serial, even if trimming hides the digests. If the epoch began
    because facts were lost, the lost facts are those of `lost_stream` after token `lost_upto`. `clock` has
    the replica's token of each stream and writer, without ephemeral streams; empty if it would be too large.
    `check` is the CRC-32 of the other fields; empty from older replicas.
    """

    history: str
    position: LogPosition
    filter: Filter = ALL
    clock: dict[str, dict[str, Int64]] = {}
    epoch_start: LogPosition | None = None
    began_ms: Int64 = 0
    lost_stream: str = ""
    lost_upto: Natural64 = 0
    check: str = ""

    EXAMPLES = {NATIVE: 'SUBSCRIBE {"history":"h","position":{"epoch":1,"serial":7,"digest":"d"}}'}


@command("SUBSCRIBED", sent_by=SERVER, since=SINCE)
class Subscribed(Command, frozen=True):
    """The subscription is accepted: missing facts follow, then new ones. `position` is the upstream's."""

    position: LogPosition = field(Body(LogPosition))

    EXAMPLES = {NATIVE: 'SUBSCRIBED {"epoch":1,"serial":9,"digest":"e"}'}


@command("LINKED", sent_by=SERVER, since=SINCE)
class Linked(Command, frozen=True):
    """Whether the upstream is the primary, or follows it, directly or through other replicas: 1 or 0.

    It comes after SUBSCRIBED, and after each change. A replica that does not reach the primary has perhaps
    facts that the primary has lost. To agree with it proves nothing.
    """

    linked: int = field(Integer(least=0))

    EXAMPLES = {NATIVE: "LINKED 1"}


@command("BLOCK", sent_by=SERVER, since=SINCE)
class Block(Command, frozen=True):
    """`size` bytes follow: that many `lines` of JSON, whose SHA-256 checksum in hexadecimal is `sha256`.

    `kind` is ``facts`` (a fact a line, as in the changelog), ``meta`` (epoch starts, receipts), ``snapshot``
    (the metadata of a snapshot), ``ephemeral`` (new facts of ephemeral streams), ``held`` (all retained
    facts of ephemeral streams, and the positions of their writers) or ``keys`` (all issued keys, one a line).
    ``channel`` has no JSON, but messages of the channel, as a subscriber of the RESP port gets them.
    """

    kind: str = field(Word())
    lines: int = field(Integer())
    size: int = field(Integer())
    sha256: str = field(Word())

    EXAMPLES = {NATIVE: "BLOCK facts 2 310 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}


@command("HEARTBEAT", sent_by=SERVER, since=SINCE)
class Heartbeat(Command, frozen=True):
    """All wanted facts up to this position were sent. `head` is the upstream's serial, `at_ms` its clock.

    `check` is the CRC-32 of the other fields.
    """

    epoch: int = field(Integer(least=0))
    serial: int = field(Integer(least=0))
    digest: str = field(Word())
    head: int = field(Integer(least=0))
    at_ms: int = field(Integer())
    check: str = field(Word())

    EXAMPLES = {NATIVE: "HEARTBEAT 1 812 9f86d081 900 1490197665618 0a1b2c3d"}

    @property
    def position(self) -> LogPosition:
        """The position up to which all wanted facts were sent."""
        return LogPosition(self.epoch, self.serial, self.digest)


@command("ACK", sent_by=CLIENT, right="replicate", since=SINCE)
class Ack(Command, frozen=True):
    """The replica has all wanted facts up to `serial` on disk. `at_ms` is of the last HEARTBEAT, or 0."""

    epoch: int = field(Integer(least=0))
    serial: int = field(Integer(least=0))
    at_ms: int = field(Integer())

    EXAMPLES = {NATIVE: "ACK 1 812 1490197665618"}


@command("UP", sent_by=CLIENT, right="replicate", since=SINCE)
class Up(Command, frozen=True):
    """A command of a follower of the replica.

    `origin` identifies one run of the replica, and `number` rises by one for each of its commands. The
    upstream drops a number that it has already accepted.
    """

    origin: str = field(Word())
    number: int = field(Integer(least=0))
    line: str = field(Rest())

    EXAMPLES = {NATIVE: "UP replica1-f3a9 17 REMOTE_SERVER_UP example.org"}

    def __repr__(self) -> str:
        # The line may be a USER_IP, which has an access token.
        return f"Up(origin={self.origin!r}, number={self.number!r}, line=...)"


@command("TAKEN", sent_by=SERVER, since=SINCE)
class Taken(Command, frozen=True):
    """All commands of this origin from number `since` up to `number` were accepted."""

    origin: str = field(Word())
    number: int = field(Integer(least=0))
    since: int = field(Integer(least=0))

    EXAMPLES = {NATIVE: "TAKEN replica1-f3a9 17 1"}


@command("DOWN", sent_by=SERVER, since=SINCE)
class Down(Command, frozen=True):
    """A command for all processes, which the replica forwards to its followers."""

    line: str = field(Rest())

    EXAMPLES = {NATIVE: "DOWN REMOTE_SERVER_UP example.org"}


@command("CHANNEL", sent_by=CLIENT, right="read", stream=ALL_STREAMS, since=SINCE)
class Channel(Command, frozen=True):
    """The replica serves the channel at its own RESP port: it is to be passed what is published here."""

    EXAMPLES = {NATIVE: "CHANNEL"}


@command("PUBLISH", sent_by=CLIENT, right="write", stream=ALL_STREAMS, since=SINCE)
class Publish(Command, frozen=True):
    """A line that a client of the replica has published. `publisher` is a name for its connection."""

    publisher: str = field(Word())
    line: str = field(Rest())

    EXAMPLES = {NATIVE: "PUBLISH 0a1b.3 REMOTE_SERVER_UP example.org"}

    def __repr__(self) -> str:
        return f"Publish(publisher={self.publisher!r}, line=...)"


@command("PUBLISH_TO", sent_by=CLIENT, right="write", stream=ALL_STREAMS, since=SINCE)
class PublishTo(Command, frozen=True):
    """As PUBLISH, on a sub-channel of this name."""

    publisher: str = field(Word())
    channel: str = field(Word())
    line: str = field(Rest())

    EXAMPLES = {NATIVE: "PUBLISH_TO 0a1b.3 USER_IP ..."}

    def __repr__(self) -> str:
        # The line may be a USER_IP, which has an access token.
        return f"PublishTo(publisher={self.publisher!r}, channel={self.channel!r}, line=...)"


@command("PUBLISHER_LOST", sent_by=CLIENT, right="write", stream=ALL_STREAMS, since=SINCE)
class PublisherLost(Command, frozen=True):
    """The connection of this publisher has ended, perhaps with its last lines. ``*``: all of them."""

    publisher: str = field(Word())

    EXAMPLES = {NATIVE: "PUBLISHER_LOST 0a1b.3"}


@command("DIGESTS", sent_by=CLIENT, right="replicate", since=SINCE)
class Digests(Command, frozen=True):
    """A request for the digests at these serials, to find where two histories diverge."""

    serials: list[Natural64] = field(Body(list[Natural64]))

    EXAMPLES = {NATIVE: "DIGESTS [1,512]"}


@json_command("DIGESTS_ARE", sent_by=SERVER, since=SINCE)
class DigestsAre(Command, frozen=True):
    """The digests at the requested serials; None for those that are unknown."""

    digests: dict[str, str | None]

    EXAMPLES = {NATIVE: 'DIGESTS_ARE {"digests":{"1":"d","512":null}}'}


@command("PEERS", sent_by=SERVER, since=SINCE)
class Peers(Command, frozen=True):
    """The addresses of the other replicas, which a new primary must notify."""

    addresses: list[str] = field(Body(list[str]))

    EXAMPLES = {NATIVE: 'PEERS ["tcp:host:9092 http://host:9093"]'}

    def check(self) -> None:
        """Raises `RemoteProtocolError` unless the addresses pass `is_address`."""
        check_printable(*self.addresses)


@json_command("REFUSED", sent_by=SERVER, since=SINCE)
class Refused(Command, frozen=True, kw_only=True, omit_defaults=True):
    """A request is refused. `code` is for programs, `message` for people; `retryable`: it can work later."""

    code: str
    message: str
    retryable: bool
    moved_to: str = ""
    epoch: Natural64 = 0
    serial: Natural64 = 0

    EXAMPLES = {NATIVE: 'REFUSED {"code":"trimmed","message":"...","retryable":false}'}


def refusal(
    code: str,
    message: str,
    *,
    moved_to: str = "",
    epoch: int = 0,
    serial: int = 0,
    retryable: bool | None = None,
) -> Refused:
    """Make a refusal of this kind, with this message. Unless `retryable` is given, the code decides it."""
    return Refused(
        code=code,
        message=message,
        retryable=bool(REFUSALS[code].retryable) if retryable is None else retryable,
        moved_to=moved_to,
        epoch=epoch,
        serial=serial,
    )


NATIVE_COMMANDS: Final[tuple[type[Command], ...]] = tuple(
    made
    for made in list(vars().values())
    if isinstance(made, type) and issubclass(made, Command) and made is not Command
)
"""The native commands, in the order of the conversation."""


def heartbeat_check(epoch: int, serial: int, digest: str, head: int, at_ms: int) -> str:
    """Return the `check` of a HEARTBEAT. Without it a corrupted position would make a replica skip facts."""
    return f"{crc32(f'{epoch} {serial} {digest} {head} {at_ms}'.encode()):08x}"


def subscribe_check(request: Subscribe) -> str:
    """Return the `check` of a SUBSCRIBE. Without it a corrupted one could stop the replica."""
    fields = [getattr(request, name) for name in request.__struct_fields__ if name != "check"]
    encoded = msgspec.json.encode(fields, order="deterministic")
    return f"{crc32(encoded):08x}"
