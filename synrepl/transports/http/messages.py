"""Bodies and answers of routes that daemons request from each other.

They accept unknown fields, unlike the bodies that people write: a daemon of a later release may send more.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from synrepl.wire.native import Join, Joining, Subscribe
from synrepl.wire.position import LogPosition


class DigestsAnswer(msgspec.Struct, frozen=True):
    """The digests of a log at some serials (None: unknown), and its head."""

    epoch: int
    serial: int
    history: str
    digests: Mapping[int, str | None]


class ReplicaIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The name and address of a replica. Unless `registered`, it gets the lease of an anonymous reader."""

    name: str
    registered: bool = True
    address: str = ""


class SubscribeBody(ReplicaIdentity, frozen=True, kw_only=True, omit_defaults=True):
    """A replica's identity, position and filter."""

    subscription: Subscribe


class SubscribeAnswer(msgspec.Struct, frozen=True):
    """The head of the log, and addresses of other replicas."""

    position: LogPosition
    peers: list[str]


class JoinBody(ReplicaIdentity, frozen=True, kw_only=True, omit_defaults=True):
    """A replica's identity and its request for a snapshot."""

    join: Join


class JoinAnswer(Joining, frozen=True, kw_only=True):
    """Response to a join: the replica fetches the facts after `after`, up to `position`, from the changelog.

    `snapshot` is the rest of the snapshot (lines of JSON, as in a block); None if the replica has it already.
    """

    snapshot: str | None


class AckBody(msgspec.Struct, frozen=True):
    """A replica has stored everything up to this serial durably."""

    epoch: int
    serial: int


class AckAnswer(msgspec.Struct, frozen=True):
    """The serial of the head, and addresses of other replicas."""

    serial: int
    peers: list[str]


MAX_FORWARDED: Final = 500
"""Commands of a request. They are processed in one turn of the reactor, which takes up to 40 ms."""


class ForwardedCommands(msgspec.Struct, frozen=True):
    """Commands of a replica's followers: numbers and lines, in order, under the replica's `origin`."""

    origin: str
    commands: Annotated[list[tuple[int, str]], msgspec.Meta(max_length=MAX_FORWARDED)] = []


class AcceptedForwards(msgspec.Struct, frozen=True):
    """All commands of this origin from number `since` up to `number` were accepted."""

    number: int
    since: int
