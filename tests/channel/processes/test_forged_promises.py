"""Promises that are published at the RESP port are nobody's."""

from pathlib import Path

import pytest

from tests.channel.processes.test_resp import Client, publish
from tests.processes.channel import eventually
from tests.processes.loading import Refused
from tests.processes.replicas import Cluster, Member, code, told
from tests.replicas.processes.test_acks import AcksLoad, numbers
from tests.servers.ports import free_port


@pytest.mark.slow
def test_a_forged_promise_loses_no_acknowledged_fact(tmp_path: Path) -> None:
    """Published at the RESP port of the primary, while one replica alone acknowledges."""
    port, load = free_port(), AcksLoad()
    with Cluster(tmp_path) as cluster:
        resp = ("--resp", f"tcp:{port}:interface=127.0.0.1")
        primary = cluster.add("n0", *resp, "--redis-writes", "to_device", "--instance-name", "synrepl1")
        acknowledging, away = (cluster.add(name, upstream=primary.front) for name in ("n1", "n2"))
        cluster.wait_until_same()
        client = Client(port)
        with load.running(primary):
            load.wait_for(10)
            for writer in ("persister1", primary.status()["instance"]):
                publish(
                    client,
                    primary.status()["server_name"],
                    f"POSITION promises {writer} 9 9",
                    f'RDATA promises {writer} 10 ["acks",["1"],[]]',
                    f"POSITION push_rules {writer}.control 1 1",
                    f'RDATA push_rules {writer}.control 2 ["@{writer}.control:hs"]',
                )
            eventually(lambda: len(controls(away)) == 2, "the control rows at the replica")
            away.kill()
            load.wait_for(20)
            primary.kill()
            acknowledging.kill()
        client.close()
        away.start()

        with pytest.raises(Refused) as refusal:
            away.ask("POST", "/v1/promote", {"force": True})
        assert "replicas_silent" == code(refusal.value), told(refusal.value)
        acknowledging.start()
        acknowledging.ask("POST", "/v1/promote", {"force": True})
        assert load.acknowledged - numbers(acknowledging) == set()


def controls(member: Member) -> list[str]:
    """The writers of the ordinary rows that were published."""
    return [fact.writer for fact in member.facts() if b".control:hs" in fact.rows]
