"""A daemon's own streams over a replica and by replays, with real daemons: nothing of them is stored.

`tests.service.test_ways_in` has the ways in of one daemon.
"""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.staging import Stage
from synrepl.cli import main
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.replay import replay
from synrepl.pipeline.store import Store
from tests.processes.loading import Asker, Refused, changelog
from tests.service.processes import Daemon
from tests.service.test_ways_in import CONTROL, FORGED, WRITERS


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A place for daemons."""
    with Stage() as made:
        yield made


def stored(daemon: Daemon) -> Counter[str]:
    """The numbers of facts in this log by stream."""
    return Counter(fact.stream for fact in changelog(daemon.url))


def test_writes_that_a_replica_forwards(stage: Stage) -> None:
    """One append, several, and several as one; each with a fact of another stream beside it."""
    primary = stage.start("berlin")
    replica = stage.replica("paris", f"tcp:{primary.follow}")
    stage.wait_live(replica)
    ways = product(FORGED.items(), WRITERS, (False, True))
    with Asker(replica.url) as asker:
        for number, ((stream, row), writer, atomic) in enumerate(ways, 1):
            forged = {"stream": stream, "writer": writer, "facts": [[row]]}
            for body in ({"appends": [forged], "atomic": atomic}, {"appends": [forged]}):
                with pytest.raises(Refused):
                    asker.ask("POST", "/v1/facts", json.dumps(body).encode())
            with pytest.raises(Refused):
                asker.post(stream, [[row]], writer=writer)
            asker.post(CONTROL, [[["@ada:hs"]]], writer=writer)
            assert stored(primary) == {CONTROL: number}


def test_replays(stage: Stage, tmp_path: Path) -> None:
    """Of a changelog, and of an archive of it: a declaration is one of this daemon, the others are left."""
    source, target, other = (stage.start(name) for name in ("berlin", "paris", "rome"))
    lines = [
        {"epoch": 1, "serial": serial, "stream": stream, "writer": writer, "token": serial, "rows": [row]}
        for serial, (writer, (stream, row)) in enumerate(
            product(WRITERS, ((CONTROL, ["@ada:hs"]), *FORGED.items())), 1
        )
    ]
    (tmp_path / "forged.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    done = CliRunner().invoke(main, ["replay", str(tmp_path / "forged.jsonl"), "--url", target.url])

    assert 0 == done.exit_code, done.output
    assert stored(target) == {CONTROL: len(WRITERS), "declarations": 1}
    (declared,) = [fact for fact in changelog(target.url) if fact.stream == "declarations"]
    assert ("master", 1) == (declared.writer, declared.token)

    stage.append(source, 3)
    with Asker(source.url) as asker:
        asker.ask("POST", "/v1/streams", b'{"name":"evil"}')
        atomic = {"appends": [{"stream": CONTROL, "facts": [[["@a:hs"]]]}] * 2, "atomic": True}
        asker.ask("POST", "/v1/facts", json.dumps(atomic).encode())
    had = stored(source)
    assert had["atomic_appends"]
    assert had["declarations"]
    with LocalDriver(threads=1) as driver:
        archive(driver, source.url, Store(str(tmp_path / "archive")))
        replay(driver, Store(str(tmp_path / "archive")), other.url)

    del had["atomic_appends"]
    assert stored(other) == had
