"""What the status says of replicas and leases that need attention."""

from typing import Any

from synrepl.base.access import LOCAL, Access
from synrepl.base.problems import Notice
from synrepl.daemon.parts import Part
from synrepl.replicas.described import ENDED_REPLICA, LOST_REPLICA, notices
from synrepl.replication.status import build_status
from synrepl.replication.status_parts import NoIngest
from tests.http.builders import SiteCase


class Replication(Part):
    """A daemon with replicas of these states and lags in seconds, and leases of which so much is used."""

    def __init__(self, replicas: list[tuple[str, float]], leases: list[float]) -> None:
        self._replicas = [
            {"state": state, "lag_seconds": lag, "address": f"- http://replica{number}"}
            for number, (state, lag) in enumerate(replicas)
        ]
        self._leases = [{"used": used, "ended": None} for used in leases]

    def status(self, access: Access = LOCAL) -> dict[str, Any]:
        return {"replicas": self._replicas, "leases": self._leases}

    def notices(self, access: Access = LOCAL) -> list[Notice]:
        return list(notices(self._replicas, self._leases))


class AttentionTests(SiteCase):
    """This daemon is well, and others are not."""

    def built(self, replication: Replication) -> dict[str, Any]:
        """The status with this part."""
        return build_status(
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            ingest=NoIngest(),
            refused=self.refused,
            rooms={"replicas": replication},
            clock=self.clock,
            instance="master",
            server_name="hs.example",
            started_at=0.0,
            version="1",
        )

    def test_what_is_wrong_elsewhere_is_a_warning(self) -> None:
        """This daemon is well; a replica that is behind for a moment is no news."""
        replication = Replication(
            [("ended", 9.0), ("lost", 9.0), ("lost", 0.0), ("behind", 5.0), ("behind", 0.2), ("live", 0.0)],
            [0.85, 0.2],
        )

        found = self.built(replication)

        self.assertEqual(
            ("serving", ["1 replica whose lease has ended, 2 lost, 1 behind", "1 lease nearly used up"]),
            (found["state"], found["warnings"]),
        )

    def test_a_status_says_what_to_do(self) -> None:
        """The word `lost` alone leaves an operator with a search."""
        well = self.built(Replication([("live", 0.0)], []))
        lost = self.built(Replication([("lost", 0.0), ("ended", 0.0)], []))

        self.assertEqual([], well["what_to_do"])
        self.assertEqual([LOST_REPLICA, ENDED_REPLICA], lost["what_to_do"])

    def test_a_replica_that_moved_is_not_lost(self) -> None:
        """After a promotion all is well."""
        found = self.built(Replication([("lost", 9.0), ("moved", 9.0)], []))

        self.assertEqual(["1 replica lost"], found["warnings"])
