"""What only two daemons of ours say to each other: how a replica makes itself known, joins and subscribes.

The replica speaks first, and a server that was not spoken to so never says any of this. All of it goes as
lines, like every other command; what is large goes as a `Block`: a line that says how long it is, and behind
it exactly so many bytes.

::

    replica                                  primary
    HELLO      who I am, a nonce        -->
                                        <--  CHALLENGE   a nonce, whether a proof is wanted
    AUTH       a proof                  -->
                                        <--  WELCOME     a proof, which history, where it stands
    JOIN       from the beginning or on -->
                                        <--  JOINING     the place of the snapshot
                                        <--  BLOCK facts ... BLOCK meta ... BLOCK facts
                                        <--  JOINED      the place reached
    SUBSCRIBE  where I stand            -->
                                        <--  SUBSCRIBED
                                        <--  BLOCK facts, HEARTBEAT ...
    ACK        what I hold              -->
    UP         what a follower says     -->
                                        <--  TAKEN       what was taken of it
                                        <--  DOWN        what all processes are told

In place of any answer the primary may say REFUSED, and why; after it the connection ends.
"""

from typing import Annotated, Any, Final, TypeVar
from zlib import crc32

import msgspec

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire.dialect import NATIVE
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import CLIENT, SERVER, Command, command, integer, json_rest, rest, word
from synrepl.wire.kinds import MAX_INTEGER, MIN_INTEGER
from synrepl.wire.text import printable

__all__ = [
    "NATIVE_COMMANDS",
    "CAPABILITIES",
    "COMMANDS",
    "SPOKEN",
    "VERSION",
    "Ack",
    "Auth",
    "Block",
    "Challenge",
    "Digests",
    "DigestsAre",
    "DigestsBody",
    "Down",
    "Greeting",
    "Heartbeat",
    "Hello",
    "Int64",
    "Join",
    "Joined",
    "Joining",
    "JoinedBody",
    "JoiningBody",
    "JoinRequest",
    "ChallengeBody",
    "Natural64",
    "Peers",
    "Proof",
    "Refusal",
    "Refused",
    "WirePosition",
    "Subscribe",
    "Subscribed",
    "Subscription",
    "Taken",
    "Up",
    "Welcome",
    "WelcomeBody",
    "decode_body",
    "encode_body",
    "heartbeat_check",
    "native_commands",
]

VERSION: Final = 1
"""Of this conversation. A peer of a higher one is spoken to in ours."""

CAPABILITIES: Final = ("digests", "ephemeral", "peers", "receipts")
"""What both ends of version 1 can do; whoever says nothing of it can do just these. A later one says more,
and is not sent what it does not say."""

COMMANDS: Final = "commands"
"""The capability to take and to pass on what followers send up (UP, TAKEN, DOWN)."""

SPOKEN: Final = (*CAPABILITIES, COMMANDS)
"""What this end can do. It is always said, as the value that a silent peer is taken to mean cannot change."""

SINCE: Final = "999.0"
M = TypeVar("M", bound=msgspec.Struct)

Int64 = Annotated[int, msgspec.Meta(ge=MIN_INTEGER, le=MAX_INTEGER)]
"""An integer that a database can hold. JSON has no bound of its own."""

Natural64 = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""An epoch, a serial or a count: the same, and not below 0."""


# -- what is said in them ----------------------------------------------------------------------------------


class WirePosition(msgspec.Struct, frozen=True):
    """A place in a history."""

    epoch: Natural64
    serial: Natural64
    digest: str


class Greeting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """HELLO: a replica says who it is. `address` is where it is itself, `nonce` is random."""

    uuid: str
    name: str
    nonce: str
    version: Int64 = VERSION
    registered: bool = True
    address: str = ""
    capabilities: tuple[str, ...] = CAPABILITIES


class ChallengeBody(msgspec.Struct, frozen=True, kw_only=True):
    """CHALLENGE: the primary's nonce, and whether it wants a proof."""

    nonce: str
    proof: bool
    version: Int64 = VERSION


class Proof(msgspec.Struct, frozen=True):
    """AUTH: that one knows the secret, without saying it."""

    proof: str = ""


class WelcomeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """WELCOME: who the upstream is, which history it has, and where that begins and stands.

    `address` is where it is, `primary` where the primary is, if it is not itself.
    """

    proof: str
    history: str
    uuid: str
    instance: str
    server_name: str
    role: str
    position: WirePosition
    trimmed_upto: Natural64
    filter: Filter = ALL
    address: str = ""
    primary: str = ""
    version: Int64 = VERSION
    capabilities: tuple[str, ...] = CAPABILITIES


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """JOIN: a copy is wanted; with `join` that one of before, from `place` on."""

    filter: Filter = ALL
    join: str = ""
    position: WirePosition | None = None
    has_meta: bool = False


class JoiningBody(msgspec.Struct, frozen=True, kw_only=True):
    """JOINING: the snapshot is of `place`; the log was trimmed up to `begin`; it goes on after `after`."""

    join: str
    history: str
    position: WirePosition
    trimmed_upto: WirePosition
    after: Natural64
    resumed: bool


class JoinedBody(msgspec.Struct, frozen=True):
    """JOINED: all up to here was sent; adopt it."""

    position: WirePosition


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SUBSCRIBE: where the replica stands, and what it wants from there on.

    `turn` is where its epoch began, `began_ms` when: where trimming hides digests, that tells two daemons
    apart that were promoted into one epoch at one place. An epoch that began since facts of `lost_stream`
    beyond `lost_upto` were lost is another one than an epoch that began with a promotion.
    """

    history: str
    position: WirePosition
    filter: Filter = ALL
    clock: dict[str, dict[str, Int64]] = {}
    epoch_start: WirePosition | None = None
    began_ms: Int64 = 0
    lost_stream: str = ""
    lost_upto: Natural64 = 0


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """REFUSED: what cannot be, by a code for programs and in words; whether to try the same again."""

    code: str
    message: str
    retryable: bool
    moved_to: str = ""
    epoch: Natural64 = 0
    serial: Natural64 = 0


class DigestsBody(msgspec.Struct, frozen=True):
    """The digests at these serials, as far as they are known; None for the others."""

    digests: dict[str, str | None]


# -- the commands ------------------------------------------------------------------------------------------


@command("HELLO", sent_by=CLIENT, since=SINCE)
class Hello(Command, frozen=True):
    """A replica makes itself known: `uuid`, `name`, `nonce`, `registered`, `address`."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'HELLO {"uuid":"u","name":"replica1","nonce":"n"}'}


@command("CHALLENGE", sent_by=SERVER, since=SINCE)
class Challenge(Command, frozen=True):
    """The primary's nonce, and whether it wants a proof of the secret."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'CHALLENGE {"nonce":"n","proof":true,"version":1}'}


@command("AUTH", sent_by=CLIENT, since=SINCE)
class Auth(Command, frozen=True):
    """HMAC-SHA256 over both nonces, the uuid and the name; the secret itself is never sent."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'AUTH {"proof":"0a1b"}'}

    def __repr__(self) -> str:
        return "Auth(body=...)"


@command("WELCOME", sent_by=SERVER, since=SINCE)
class Welcome(Command, frozen=True):
    """Who the primary is, with its own proof; which history it has, and where that stands."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'WELCOME {"proof":"0a1b","history":"h","uuid":"u"}'}


@command("JOIN", sent_by=CLIENT, since=SINCE)
class Join(Command, frozen=True):
    """A copy of everything is wanted, or the rest of one that was cut off."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: "JOIN {}"}


@command("JOINING", sent_by=SERVER, since=SINCE)
class Joining(Command, frozen=True):
    """A snapshot follows, of this place."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'JOINING {"join":"j","history":"h","after":0,"resumed":false}'}


@command("JOINED", sent_by=SERVER, since=SINCE)
class Joined(Command, frozen=True):
    """The copy is whole up to this place."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'JOINED {"position":{"epoch":1,"serial":7,"digest":"d"}}'}


@command("SUBSCRIBE", sent_by=CLIENT, since=SINCE)
class Subscribe(Command, frozen=True):
    """Where the replica stands, and which streams and writers it wants from there on."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'SUBSCRIBE {"history":"h","position":{"epoch":1,"serial":7,"digest":"d"}}'}


@command("SUBSCRIBED", sent_by=SERVER, since=SINCE)
class Subscribed(Command, frozen=True):
    """It can be served: what it lacks follows, then what comes. Says where the primary stands."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'SUBSCRIBED {"epoch":1,"serial":9,"digest":"e"}'}


@command("BLOCK", sent_by=SERVER, since=SINCE)
class Block(Command, frozen=True):
    """So many bytes follow, lines of JSON with this checksum (SHA-256).

    `kind` is ``facts`` (a fact a line, as the changelog has it), ``meta`` (turns, receipts),
    ``snapshot`` (all that stands beside a snapshot), ``ephemeral`` (facts that nobody keeps) or ``held`` (all
    that is held of those, and where their writers are).
    """

    kind: str = word()
    lines: int = integer()
    size: int = integer()
    sha256: str = word()

    EXAMPLES = {NATIVE: "BLOCK facts 2 310 9f86d081884c7d65"}


@command("HEARTBEAT", sent_by=SERVER, since=SINCE)
class Heartbeat(Command, frozen=True):
    """All that is wanted up to this place was sent; `head` is where the primary stands, `at_ms` its clock.

    `check` is the CRC-32 of the rest.
    """

    epoch: int = integer(least=0)
    serial: int = integer(least=0)
    digest: str = word()
    head: int = integer(least=0)
    at_ms: int = integer()
    check: str = word()

    EXAMPLES = {NATIVE: "HEARTBEAT 1 812 9f86d081 900 1490197665618 0a1b2c3d"}


@command("ACK", sent_by=CLIENT, since=SINCE)
class Ack(Command, frozen=True):
    """The replica holds everything up to here, durably; `at_ms` is that of the last HEARTBEAT it had then."""

    epoch: int = integer(least=0)
    serial: int = integer(least=0)
    at_ms: int = integer()

    EXAMPLES = {NATIVE: "ACK 1 812 1490197665618"}


@command("UP", sent_by=CLIENT, since=SINCE)
class Up(Command, frozen=True):
    """A follower of the replica sent this line up. `number` rises by one for each line of this origin, which
    is one life of the replica; a number that was taken before is dropped.
    """

    origin: str = word()
    number: int = integer(least=0)
    line: str = rest()

    EXAMPLES = {NATIVE: "UP replica1-f3a9 17 REMOTE_SERVER_UP example.org"}

    def __repr__(self) -> str:
        # A USER_IP in it has an access token.
        return f"Up(origin={self.origin!r}, number={self.number!r}, line=...)"


@command("TAKEN", sent_by=SERVER, since=SINCE)
class Taken(Command, frozen=True):
    """All lines of this origin up to `number` were taken; those before `since` are not known here."""

    origin: str = word()
    number: int = integer(least=0)
    since: int = integer(least=0)

    EXAMPLES = {NATIVE: "TAKEN replica1-f3a9 17 1"}


@command("DOWN", sent_by=SERVER, since=SINCE)
class Down(Command, frozen=True):
    """A line for all processes, which the replica passes on to its followers."""

    line: str = rest()

    EXAMPLES = {NATIVE: "DOWN REMOTE_SERVER_UP example.org"}


@command("DIGESTS", sent_by=CLIENT, since=SINCE)
class Digests(Command, frozen=True):
    """Which digests are at these serials? Asked to find where two histories part."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: "DIGESTS [1,512]"}


@command("DIGESTS_ARE", sent_by=SERVER, since=SINCE)
class DigestsAre(Command, frozen=True):
    """The digests at those serials, as far as they are known here."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'DIGESTS_ARE {"digests":{"1":"d","512":null}}'}


@command("PEERS", sent_by=SERVER, since=SINCE)
class Peers(Command, frozen=True):
    """Where the other replicas are: whoever becomes primary tells them."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'PEERS ["tcp:host:9092 http://host:9093"]'}


@command("REFUSED", sent_by=SERVER, since=SINCE)
class Refused(Command, frozen=True):
    """It cannot be: a code, a text, and whether it may help to try again."""

    body: bytes = json_rest()

    EXAMPLES = {NATIVE: 'REFUSED {"code":"trimmed","message":"...","retryable":false}'}


def native_commands() -> list[type[Command]]:
    """The commands declared here, in the order of the conversation."""
    return [
        Hello,
        Challenge,
        Auth,
        Welcome,
        Join,
        Joining,
        Joined,
        Subscribe,
        Subscribed,
        Block,
        Heartbeat,
        Ack,
        Up,
        Taken,
        Down,
        Digests,
        DigestsAre,
        Peers,
        Refused,
    ]


NATIVE_COMMANDS: Final = frozenset(native_commands())
"""The same, to look one up."""


def heartbeat_check(epoch: int, serial: int, digest: str, head: int, at_ms: int) -> str:
    """The `check` of a HEARTBEAT: a place changed on the way would make a replica pass over facts."""
    return f"{crc32(f'{epoch} {serial} {digest} {head} {at_ms}'.encode()):08x}"


def encode_body(message: Any) -> bytes:
    """The JSON of a message, for a command that holds one."""
    try:
        return msgspec.json.encode(message, order="deterministic")
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"cannot write {type(message).__name__}: {error}") from error


def decode_body(shape: type[M], body: bytes) -> M:
    """The message of a command. Raises RemoteProtocolError, with words for the peer."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"cannot parse {shape.__name__}: {printable(str(error))}") from error
