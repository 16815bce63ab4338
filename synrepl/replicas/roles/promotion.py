"""Promotion: a replica, or by force a fenced daemon, becomes primary in a new epoch."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from synrepl.base.history import EpochStart
from synrepl.base.time import steady_seconds
from synrepl.replicas.issued_keys import IssuedKeys
from synrepl.replicas.roles.handover import HandOverCandidate
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.messages import CannotPromote
from synrepl.replicas.roles.role_states import Role

if TYPE_CHECKING:
    from synrepl.replicas.roles.promise_check import PromiseCheck


@dataclass(eq=False, repr=False)
class Promotion:
    """Checks that this daemon has what a primary must have, and then makes it primary.

    `missing_files` returns the files of facts up to a serial that this daemon lacks, `steady` seconds of a
    clock that nobody sets.
    """

    _logger = Logger()
    roles: RoleManager
    issued: IssuedKeys
    _: KW_ONLY
    missing_files: Callable[[int], Awaitable[Sequence[Any]]]
    steady: Callable[[], float] = steady_seconds

    def __post_init__(self) -> None:
        self.candidate = HandOverCandidate(
            self.roles.log,
            self.roles.clock,
            self.roles.peers,
            address=self.roles.address,
            missing_files=self.missing_files,
            issued=self.issued,
            steady=self.steady,
        )
        self._is_under_way = False

    @cached_property
    def _promise_check(self) -> "PromiseCheck":
        # Imported on use: for a promotion by force alone.
        from synrepl.replicas.roles.promise_check import PromiseCheck

        return PromiseCheck(
            self.roles.log,
            self.roles.clock,
            self.roles.peers,
            known=self.roles.owner.known_daemons,
            issued=self.issued,
        )

    async def promote(
        self,
        *,
        force: bool = False,
        lose_acknowledged: bool = False,
        believed: Collection[str] | None = None,
    ) -> EpochStart:
        """Become primary, in a new epoch. Raises `CannotPromote`, and `StorageError` if it cannot be saved.

        The copy must be complete and without a filter, whatever the role, also with `force`. Without `force`,
        the old primary first stops accepting facts, and this daemon must have all facts and files of the old
        primary. With `force` the old primary is not asked, and missing facts and files are left behind; when
        it returns, it is fenced, and its `resync` writes the facts that only it has to a file. With `force` a
        fenced daemon becomes primary too: the operator asserts that there is no other primary.

        With `force` no fact is left behind that replicas acknowledged to an append (`PromiseCheck`), unless
        `lose_acknowledged`. If several writers promised, and only one of them can have been primary, those
        that are `believed` count (`PromiseCheck.prove`).
        """
        roles = self.roles
        if roles.role == Role.FENCED:
            if not force:
                raise CannotPromote("fenced", f"{roles.why}; {roles.ways_out}")
            self._check_copy()
            async with roles.changing:
                if roles.role != Role.FENCED:
                    raise CannotPromote("promoting", f"this daemon is {roles.role} now, no longer fenced")
                if not lose_acknowledged:
                    await self._promise_check.check(await self._promise_check.prove(believed))
                return await roles.begin_as_primary([roles.primary], check=self._check_copy)
        replica = roles.replica
        if roles.role != Role.REPLICA or replica is None:
            raise CannotPromote(
                "not_a_replica", f"this daemon is {roles.role}; only a replica can be promoted"
            )
        if self._is_under_way:
            raise CannotPromote("promoting", "a promotion is in progress")
        self._check_copy()
        self._is_under_way = True
        old, followed = replica.primary, replica.upstream.where
        try:
            promise = None if lose_acknowledged else await self._promise_check.prove(believed)
            if not force:
                await self.candidate.catch_up(old)
            elif not lose_acknowledged:
                await self._promise_check.check(promise)
            async with roles.changing:
                if roles.replica is not replica and not force:
                    raise CannotPromote("moved", "this replica began to follow another daemon meanwhile")
                check = self._check_copy if force else self._check_in_order
                epoch_start = await roles.begin_as_primary([old, followed], check=check)
            if not force and self.candidate.is_over:
                self._logger.warn(
                    "the hand-over ran out while the epoch was committed: the old primary may have accepted"
                    " facts meanwhile, which its resync writes to a file"
                )
            return epoch_start
        except CannotPromote:
            # Only now: the old primary ends the hand-over once this replica is no longer being promoted.
            await self.candidate.hand_back(old)
            raise
        finally:
            self.candidate.stop()
            self._is_under_way = False

    def _check_in_order(self) -> None:
        self._check_copy()
        self.candidate.check()

    def _check_copy(self) -> None:
        """Raises `CannotPromote` unless this log can have all that a primary's has."""
        log, replica = self.roles.log, self.roles.replica
        if log.notes.get("filter") is not None:
            raise CannotPromote("filtered", "this copy has only some streams or writers: a primary needs all")
        # Of a replica that was started without its upstream, and so is fenced, the notes tell what it is.
        is_copy = replica is not None or log.notes.get("primary_at") or log.notes.get("upstream_at")
        if is_copy and not log.head.serial and log.notes.get("joined") is None:
            why = "this copy was never complete: start it with --upstream, and wait until it has joined"
            raise CannotPromote("not_whole", why)
