"""`synrepl invalidate` at a homeserver of the newest release: stale answers become right at every process."""

import json
import os
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from tests.interop.client import CLIENT, Client, Refused
from tests.interop.drive import Driver, Driving
from tests.interop.harness import peer_python
from tests.interop.homeserver import PROCESSES, WORKER, Homeserver
from tests.interop.logs import trouble_in
from tests.interop.test_inspect import inspect, watching
from tests.processes.channel import eventually
from tests.processes.loading import size

pytestmark = pytest.mark.skipif(
    not peer_python("newest").exists(),
    reason="the newest Synapse is not there; run scripts/interop newest",
)

TOKEN_CACHE: Final = "get_user_by_access_token"
RECEIVED: Final = dict.fromkeys(PROCESSES, True)
TIMES_UNDER_TRAFFIC: Final = size(5, 100)


@pytest.fixture(scope="module")
def homeserver() -> Iterator[Homeserver]:
    """A homeserver with three processes."""
    with Homeserver() as found:
        yield found


def invalidate(homeserver: Homeserver, *words: str) -> tuple[int, dict[str, Any], str]:
    """The command's exit code, what it says as JSON, and its standard error."""
    files = [str(one.settings) for name, one in homeserver.processes.items() if name != "master"]
    options = ["--homeserver", str(homeserver.common)]
    options += ["--homeserver", str(homeserver.processes["master"].settings)]
    for file in files:
        options += ["--worker", file]
    done = subprocess.run(
        [sys.executable, "-m", "synrepl", "invalidate", *options, "--json", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def change(homeserver: Homeserver, statement: str, *values: object) -> None:
    """Change something behind the homeserver's back."""
    with psycopg.connect(homeserver.database, autocommit=True) as database:
        database.execute(statement, values)


def received(found: dict[str, Any]) -> dict[str, bool]:
    """Whether each process has received the rows."""
    return {one["name"]: one["received"] for one in found["processes"]}


def guests(client: Client) -> list[bool]:
    """Whether each process takes the user for a guest."""
    return [bool(client.who_am_i(at)["is_guest"]) for at in PROCESSES]


def make_guest(homeserver: Homeserver, client: Client, is_guest: bool) -> None:
    """Change the user's row."""
    change(homeserver, "UPDATE users SET is_guest = %s WHERE name = %s", int(is_guest), client.user)


def aliases(client: Client, room: str) -> list[list[str]]:
    """The aliases of a room, as each process has them."""
    path = f"{CLIENT}/rooms/{urllib.parse.quote(room)}/aliases"
    return [client.request(at, "GET", path)["aliases"] for at in PROCESSES]


def test_a_dry_run_writes_nothing(homeserver: Homeserver) -> None:
    """It says what each process would drop, by the release that the metrics tell."""
    code, found, _ = invalidate(homeserver, "get_user_by_id", "@a:hs.test", "--dry-run")

    assert code == 0
    assert {"1.163": [{"name": "get_user_by_id", "key": ["@a:hs.test"]}]} == found["drops"]
    assert ["1.163.2"] * 3 == [one["release"] for one in found["processes"]]
    with psycopg.connect(homeserver.database) as database:
        ours = (
            "SELECT count(*) FROM cache_invalidation_stream_by_instance WHERE instance_name LIKE 'synrepl%'"
        )
        assert database.execute(ours).fetchone() == (0,)


def test_a_name_of_another_release_is_refused(homeserver: Homeserver) -> None:
    """Nothing would have dropped anything."""
    code, _, errors = invalidate(homeserver, "get_user_in_directory", "@a:hs.test", "--yes")

    assert code == 2
    assert "Synapse 1.163 has no cache get_user_in_directory (since 0.22, until 1.89)" in errors


@pytest.mark.story
def test_one_invalidated_entry_is_read_again_by_every_process(homeserver: Homeserver) -> None:
    """A changed row is seen by every process, and others' own invalidations go on."""
    client = Client.register(homeserver, "one-entry")
    assert [False] * 3 == guests(client)
    make_guest(homeserver, client, True)
    assert [False] * 3 == guests(client)

    code, found, errors = invalidate(
        homeserver, TOKEN_CACHE, client.token, "--verify", "--yes", "--why", "row repaired"
    )

    assert (0, RECEIVED) == (code, received(found))
    assert "row repaired" in errors
    assert len(found["ids"]) == 1
    eventually(lambda: guests(client) == [True] * 3, "all see it")
    other = Client.register(homeserver, "logs-out")
    assert [False] * 3 == guests(other)
    other.log_out()
    for at in PROCESSES:
        eventually(partial(is_refused, other, at), f"{at} has forgotten the token")


def test_a_daemon_that_watches_does_it(homeserver: Homeserver) -> None:
    """Its log has who and why, and not the key of the entry."""
    client = Client.register(homeserver, "over-http")
    guests(client)
    make_guest(homeserver, client, True)
    body = {"name": TOKEN_CACHE, "key": [client.token], "why": "row repaired", "verify": True}
    with watching(homeserver) as daemon:
        request = urllib.request.Request(
            f"{daemon.url}/v1/invalidate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
        log = daemon.log_file.read_text()

    assert received(found) == RECEIVED
    eventually(lambda: guests(client) == [True] * 3, "all see it")
    assert f"wrote 1 row to invalidate {TOKEN_CACHE} at the homeserver: row repaired" in log
    assert client.token not in log


def is_refused(client: Client, at: str) -> bool:
    """Whether this process no longer lets the client in."""
    try:
        client.who_am_i(at)
    except Refused as refused:
        return refused.code == 401
    return False


def test_a_whole_cache(homeserver: Homeserver) -> None:
    """For everybody at once."""
    clients = [Client.register(homeserver, f"whole-{number}") for number in range(3)]
    for client in clients:
        guests(client)
        make_guest(homeserver, client, True)

    code, found, _ = invalidate(homeserver, "--all", TOKEN_CACHE, "--verify", "--yes")

    assert (0, RECEIVED) == (code, received(found))
    for client in clients:
        eventually(lambda: guests(client) == [True] * 3, "all see it")  # noqa: B023 (called here)


def test_a_room_is_invalidated_whole(homeserver: Homeserver) -> None:
    """All that is cached of it."""
    client = Client.register(homeserver, "room")
    room = client.create_room(preset="public_chat")
    eventually(lambda: aliases(client, room) == [[], [], []], "all know the room")
    statement = "INSERT INTO room_aliases (room_alias, room_id, creator) VALUES ('#late:hs.test', %s, %s)"
    change(homeserver, statement, room, client.user)
    assert [[], [], []] == aliases(client, room)

    code, found, _ = invalidate(homeserver, "--room", room, "--verify", "--yes")

    assert (0, RECEIVED) == (code, received(found))
    eventually(lambda: aliases(client, room) == [["#late:hs.test"]] * 3, "all see it")
    client.send(room, "It goes on.")


def test_among_the_invalidations_of_others(homeserver: Homeserver) -> None:
    """Others take ids before, between and after: no process ignores ours."""
    driver = Driver(homeserver)
    driver.prepare()
    client = Client.register(homeserver, "among-others")
    with Driving(driver) as driving:
        driving.wait_for_rounds(1)
        for number in range(TIMES_UNDER_TRAFFIC):
            is_guest = number % 2 == 0
            assert [not is_guest] * 3 == guests(client)
            make_guest(homeserver, client, is_guest)
            code, found, _ = invalidate(homeserver, TOKEN_CACHE, client.token, "--verify", "--yes")
            assert (0, RECEIVED, []) == (code, received(found), found["overtaken"])
            eventually(lambda: guests(client) == [is_guest] * 3, "all see it")  # noqa: B023 (called here)


def test_a_stopped_process(homeserver: Homeserver) -> None:
    """It is not seen, and the exit code says so; it drops its entry when it goes on."""
    client = Client.register(homeserver, "stopped")
    guests(client)
    make_guest(homeserver, client, True)
    process = homeserver.processes[WORKER].pid
    os.kill(process, signal.SIGSTOP)
    try:
        code, found, _ = invalidate(homeserver, TOKEN_CACHE, client.token, "--verify", "--yes")
    finally:
        os.kill(process, signal.SIGCONT)

    assert (1, RECEIVED | {WORKER: False}) == (code, received(found))
    eventually(lambda: guests(client) == [True] * 3, "all see it")


def test_an_inspection_finds_nothing_afterwards(homeserver: Homeserver) -> None:
    """Our name is a writer that no file knows, and that holds nothing up."""
    found = inspect(homeserver)

    assert (0, [], []) == (found["code"], found["findings"], found["unseen"])


def test_no_process_complains(homeserver: Homeserver) -> None:
    """Of nothing that was done before."""
    for name in PROCESSES:
        assert [] == list(trouble_in(homeserver.log(name), ("replication", "redis", "caches")))
