"""Messages between daemons about roles, and reasons why a daemon refuses writes, claims or promotion."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from synrepl.base.history import EpochStart
from synrepl.base.response_errors import ErrorResponse, OwnResponse
from synrepl.errors import ReplicationError
from synrepl.replicas.error_codes import ERROR_CODES
from synrepl.replication.addresses import Address
from synrepl.wire.position import LogPosition
from synrepl.wire.text import MAX_ADDRESS, printable

MAX_EPOCH: Final = 2**53
"""The largest plausible epoch: epochs count promotions, restores and losses of facts."""

MAX_MISSING: Final = 100
"""How many missing files a response names."""


class Claim(msgspec.Struct, frozen=True):
    """Says that the daemon with this `uuid` and `address` is primary, in `epoch`. `name` is the sender's."""

    epoch: int
    uuid: str
    address: str
    history: str
    name: str = ""


class HandOver(msgspec.Struct, frozen=True):
    """A replica's request to its primary to refuse facts for `seconds`; 0 ends the hand-over.

    `uuid` and `address` are the replica's.
    """

    seconds: float
    uuid: str = ""
    address: str = ""


class NewerFact(msgspec.Struct, frozen=True):
    """A fact that a daemon has, by its place in the log."""

    serial: int
    stream: str
    writer: str
    token: int


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon's status, the response to ``GET /v1/replication``.

    `epoch_starts` tells where each of its epochs began, `trimmed_upto` the serial up to which its log was
    trimmed. It is `promoting` from its first request for a hand-over to the end of the promotion. `claim` is
    what it tells others of the primary that it knows; None from an earlier release, and if it knows none.
    `newer` are the first of its facts after the serial that was asked for. It `has_promise` if its log has
    one (`replicas/promises.py`). `keys` is the digest of its issued keys, `revoked` the names of those that
    it knows to be revoked, by the ids of their records; they are said to who may administer.
    """

    history: str
    uuid: str
    role: str
    position: LogPosition
    trimmed_upto: int = 0
    epoch_starts: tuple[EpochStart, ...] = ()
    address: str = ""
    primary: str = ""
    promoting: bool = False
    claim: Claim | None = None
    newer: tuple[NewerFact, ...] = ()
    has_promise: bool = False
    keys: str = ""
    revoked: dict[str, str] = {}


class IPeerClient(Protocol):
    """Sends requests to other daemons.

    All methods raise a `ReplicationError` when the daemon cannot be reached or refuses, or if its address may
    not be used. The key of this daemon goes only to addresses that its operator chose.
    """

    async def hand_over(self, address: Address, request: HandOver) -> LogPosition:
        """Request a hand-over from a primary; returns its position."""

    async def claim(self, address: Address, claim: Claim) -> None:
        """Notify a daemon of the current primary."""

    async def describe(self, address: Address, *, after: int | None = None) -> PeerStatus:
        """Request a daemon's status; with `after` also its first facts after this serial."""


class _RoleError(OwnResponse, ReplicationError):
    """`code` gives the reason for programs. Unless `retryable` is given, the code decides it."""

    def __init__(self, code: str, why: str, *, retryable: bool | None = None) -> None:
        super().__init__(why)
        self.code = code
        known = ERROR_CODES.get(code)
        self.retryable = bool(known is not None and known.retryable) if retryable is None else retryable

    def response(self) -> ErrorResponse:
        return ErrorResponse(self.code, str(self), more={"retryable": self.retryable})


class CannotPromote(_RoleError):
    """A daemon cannot become primary, hand over or resync now.

    `missing` are the files that it lacks; the response names the first `MAX_MISSING`. `more` are further
    fields of the response.
    """

    def __init__(
        self,
        code: str,
        why: str,
        *,
        retryable: bool | None = None,
        missing: Sequence[Any] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, why, retryable=retryable)
        self.missing = list(missing)
        self.more = dict(more or {})

    def response(self) -> ErrorResponse:
        more = self.more | {"retryable": self.retryable}
        if self.missing:
            more["missing"] = [list(one) for one in self.missing[:MAX_MISSING]]
        return ErrorResponse(self.code, str(self), status=409, more=more)


class ClaimRefused(_RoleError):
    """A claim, or another message of a peer about roles, is refused; no role has changed."""


def plausible_epoch(epoch: int) -> int:
    """Return this epoch, or 0 if no daemon can have reached it."""
    return epoch if 1 <= epoch <= MAX_EPOCH else 0


def parse_peer_address(text: str) -> Address:
    """Return the address that a peer sent.

    Raises `ClaimRefused` unless it is short and printable, and its URL, if any, is an HTTP URL.
    """
    if len(text) > MAX_ADDRESS:
        raise ClaimRefused("bad_request", f"an address may have at most {MAX_ADDRESS} characters")
    address = Address.parse(text)
    if not text.isprintable() or not (address.http == "" or _is_http(address.http)):
        raise ClaimRefused("bad_request", f"{printable(text)} is not an address of a daemon")
    return address


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in url
        )
    except ValueError:
        return False
