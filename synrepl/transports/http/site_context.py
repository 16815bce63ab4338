"""What the handlers of a site work with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from synrepl.base.interfaces import IClock, IThread
from synrepl.base.metrics import Metrics
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.hooks import Hooks
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.status_parts import FactReceiver, NoIngest, RoomPart
from synrepl.replication.stored_bytes import NO_BYTES, IStoredBytes
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.table import StreamTable
from synrepl.transports.settings import ApiSettings


@dataclass(frozen=True, kw_only=True)
class SiteContext:
    """What the handlers of a site work with: a started log, and the parts around it.

    `ingest` brings facts into the log; `is_followed` tells whether those of a stream come from a table.
    `hooks` answer what concerns other daemons of the log, `rooms` are the parts of rooms by name. `clock` is
    the reactor, except in tests. Catch-up has the row shapes of `settings.dialect`; without one, those of the
    worker's release if it is known, or else the newest. `thread` does what would keep the reactor for long.
    """

    log: Log
    publisher: Publisher
    table: StreamTable
    metrics: Metrics
    clock: IClock
    settings: ApiSettings
    declared: DeclaredStreams
    refused: RefusedFacts
    ingest: FactReceiver = field(default_factory=NoIngest)
    is_followed: Callable[[str], bool] = lambda stream: False
    hooks: Hooks = field(default_factory=Hooks)
    thread: IThread = field(default_factory=ImmediateThread)
    rooms: Mapping[str, RoomPart] = field(default_factory=dict)

    @property
    def stored_bytes(self) -> IStoredBytes:
        """The bytes that requests and facts may name by their checksum."""
        found = (part.stored_bytes() for part in self.rooms.values())
        return next((one for one in found if one is not None), NO_BYTES)

    def not_ready_reasons(self) -> list[str]:
        """Return the reasons this daemon is not ready: of the log, of its role, then of its sources."""
        is_healthy, why = self.log.healthy
        reasons = [] if is_healthy else [f"log: {why}"]
        problems = [problem for part in self.rooms.values() for problem in part.problems()]
        problems += self.ingest.problems()
        return reasons + [problem.text for problem in problems if problem.not_ready]
