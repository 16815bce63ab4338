"""The homeserver in a daemon: its tables, its watch, and the invalidation of its caches."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from synrepl.base.access import LOCAL, Access
from synrepl.base.problems import Problem
from synrepl.daemon.parts import DaemonParts, Part
from synrepl.homeserver.absence import ABSENT_STATUS
from synrepl.homeserver.settings import homeserver_settings
from synrepl.transports.http.site_context import SiteContext

if TYPE_CHECKING:
    from synrepl.homeserver.invalidation_requests import IInvalidator
    from synrepl.homeserver.tables.facts import TableFacts
    from synrepl.homeserver.watch import HomeserverWatch


class HomeserverPart(Part):
    """The room's part of a daemon: the homeserver's tables as a source, the watch, and the invalidator."""

    def __init__(
        self,
        *,
        tables: "TableFacts | None" = None,
        watch: "HomeserverWatch | None" = None,
        invalidator: "IInvalidator | None" = None,
    ) -> None:
        self.fact_source = tables
        self.invalidator = invalidator
        self._tables = tables
        self._watch = watch

    async def start(self) -> None:
        """Begin to watch. The core opens the tables, once this daemon is the primary."""
        if self._watch is not None:
            self._watch.start()

    async def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            await self._watch.stop()

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        """The watch and the tables; nothing for a peer whose key is limited to some streams."""
        if access.streams is not None:
            return ABSENT_STATUS
        tables = {} if self._tables is None else self._tables.status()
        watch = {} if self._watch is None else {"homeserver": self._watch.status()}
        return {**ABSENT_STATUS, **tables, **watch}

    def problems(self) -> Sequence[Problem]:
        """The tables that cannot be read."""
        return () if self._tables is None else self._tables.problems()


def build(daemon: DaemonParts) -> HomeserverPart:
    """Make the parts that the settings name. Raises `ConfigError`."""
    settings = homeserver_settings(daemon.settings)
    tables = watch = invalidator = None
    if settings.table_streams:
        # Imported on use, as below: a daemon needs one of them, as a rule.
        from synrepl.homeserver.tables.facts import TableFacts

        tables = TableFacts(
            settings,
            daemon.reactor,
            log=daemon.log,
            table=daemon.table,
            metrics=daemon.metrics,
            history_lost=daemon.listeners.history_lost,
        )
    if settings.homeserver:
        from synrepl.homeserver.configuration import read_homeserver
        from synrepl.homeserver.invalidation import Invalidator
        from synrepl.homeserver.watch import HomeserverWatch
        from synrepl.homeserver.watch_metrics import WatchMetrics

        homeserver = read_homeserver(settings.homeserver, settings.homeserver_workers)
        watch = HomeserverWatch(daemon.reactor, homeserver, WatchMetrics(daemon.registry))
        invalidator = Invalidator(daemon.reactor, homeserver, seconds=daemon.reactor.seconds)
    return HomeserverPart(tables=tables, watch=watch, invalidator=invalidator)


def invalidator_of(context: SiteContext) -> "IInvalidator | None":
    """Return who invalidates the caches of the homeserver that the daemon watches; None without one."""
    part = context.rooms.get("homeserver")
    return part.invalidator if isinstance(part, HomeserverPart) else None
