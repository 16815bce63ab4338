"""A daemon that stops finishes what it has accepted, and answers it."""

import http.client
import json
import threading
from pathlib import Path

from tests.service.processes import Daemon

WRITERS = 8
ENOUGH = 200


def test_what_was_stored_before_the_stop_was_answered(tmp_path: Path) -> None:
    """Under load: each fact in the log was acknowledged to the client that posted it."""
    acknowledged: list[str] = []
    enough, over = threading.Event(), threading.Event()

    def post(url: str, writer: int) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        number = 0
        while not over.is_set():
            number += 1
            user = f"@{writer}-{number}:a"
            body = json.dumps({"facts": [[[user]]]})
            try:
                connection.request("POST", "/v1/streams/push_rules/facts", body)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                break
            if answer.status == 200:
                acknowledged.append(user)
            if len(acknowledged) >= ENOUGH:
                enough.set()
        connection.close()

    with Daemon(tmp_path, options=("--server-name", "a")) as daemon:
        threads = [threading.Thread(target=post, args=(daemon.url, writer)) for writer in range(WRITERS)]
        for thread in threads:
            thread.start()
        assert enough.wait(60)
        daemon.terminate()
        over.set()
        for thread in threads:
            thread.join(60)
        assert not any("Traceback" in line for line in daemon.lines), daemon.lines

    with Daemon(tmp_path) as daemon:
        connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/v1/changelog?since=0")
        lines = connection.getresponse().read().splitlines()
        connection.close()
    stored = [row[0] for line in lines for row in json.loads(line)["rows"]]
    assert sorted(acknowledged) == sorted(stored)
