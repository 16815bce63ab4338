"""A shared channel of Synapse's processes as a source of facts: that on a Redis, or the one served here."""

from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

from synrepl.base.problems import Problem
from synrepl.ingest.source import Source
from synrepl.ingest.write_policy import WritePolicy
from synrepl.replication.follower.updates import FollowerEvent
from synrepl.replication.membership.daemon_member import DaemonMember
from synrepl.replication.serving.publisher import Publisher


@dataclass(eq=False, repr=False, kw_only=True)
class ChannelSource(Source):
    """Makes the daemon a member of a channel (docs/reference/peers.md#redis-receiver). A subclass links it.

    `write_policy` names the streams that this daemon publishes.
    """

    _logger = Logger()
    where = "Redis"
    """What has the channel, in messages."""

    publisher: Publisher
    write_policy: WritePolicy

    def __post_init__(self) -> None:
        super().__post_init__()
        self.member = DaemonMember(
            clock=self.clock,
            follower=self.follower,
            publisher=self.publisher,
            writes=self.write_policy.own,
            exclusive=self.write_policy.exclusive,
            # The name of a process that writes nothing may be that of another one.
            instance=self.settings.instance_name if self.write_policy.own else "",
            where=self.where,
        )
        self._has_warned = False
        if self.write_policy.gives_ids("caches"):
            self.follower.on_event(self._warn)

    def _warn(self, event: FollowerEvent) -> None:
        """Warn if another process writes ``caches``: with ids from two sequences, invalidations collide."""
        if event.kind == "position" and event.stream == "caches" and not self._has_warned:
            self._has_warned = True
            self._logger.warn(
                "{writer} and this daemon write the stream caches: if {writer} is a process of Synapse, take"
                " the ids of caches from Synapse's sequence, or invalidations are lost (in the manual: How to"
                " join the processes of a Synapse on Redis)",
                writer=event.writer,
            )

    def problems(self) -> list[Problem]:
        conflicts = [self.member.name_conflict, self.member.stream_conflict, self.member.overflow]
        now = self.clock.seconds()
        conflicting = [Problem(conflict, now) for conflict in conflicts if conflict is not None]
        return super().problems() + conflicting

    def lag_seconds(self) -> float:
        """Seconds since this source was last caught up. A quiet channel that works counts as caught up."""
        if self.member.is_subscribed:
            self.follower.server.mark_alive()
            if not self.member.writers:
                return 0.0  # no other process publishes on the channel
        return super().lag_seconds()

    def sections(self) -> dict[str, Any]:
        """The keys of the daemon's status that are about this channel."""
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        own = sorted(self.write_policy.own)
        return {
            **super().status(),
            "writes": [{"stream": stream, "writer": writer} for stream, writer in own],
            "is_writing": self.member.is_writing,
            "writers": sorted(self.member.writers),
        }
