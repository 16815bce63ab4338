"""A stream of appends through SIGKILL: what was answered is kept, once, in the order of the lines."""

import json
import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

from tests.processes.loading import changelog, size
from tests.service.processes import Daemon

KILLS = size(4, 20)
LINES = size(2_000, 20_000)
SENT_AHEAD = 500


class Writer:
    """Sends numbered lines, each with a key, and after a loss again from the first that has no answer."""

    def __init__(self) -> None:
        self.answered: list[int] = []
        """The first serial of each line, in order."""

    def run(self, url: str, upto: int) -> None:
        """Have all lines before number `upto` answered; raises `OSError` when the daemon is gone."""
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            connection.sendall(
                b"POST /v1/appends HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            sent, rest = len(self.answered), b""
            while len(self.answered) < upto:
                if sent < min(upto, len(self.answered) + SENT_AHEAD):
                    lines = b"".join(_line(number) for number in range(sent, sent + 50))
                    sent += 50
                    connection.sendall(b"%x\r\n%b\r\n" % (len(lines), lines))
                    continue
                data = connection.recv(65_536)
                if not data:
                    raise ConnectionResetError("the answer ended")
                *heard, rest = (rest + data).split(b"\n")
                for text in heard:
                    if text.startswith(b"{"):
                        answer = json.loads(text)
                        assert "error" not in answer, answer
                        self.answered.append(answer["first_serial"])


def _line(number: int) -> bytes:
    facts = [[[f"@u{number}:hs.example"]]]
    line = {"stream": "push_rules", "facts": facts, "writer": "w1", "idempotency_key": str(number)}
    return json.dumps(line).encode() + b"\n"


def test_each_line_is_kept_once_and_in_order(tmp_path: Path) -> None:
    """Whatever the kill interrupts; a line without an answer is sent again with its key."""
    writer, chance = Writer(), random.Random(4)
    for kill in range(1, KILLS + 1):
        with Daemon(tmp_path) as daemon:
            goal = min(LINES, kill * LINES // KILLS)
            at = chance.randint(len(writer.answered), goal)
            writer.run(daemon.url, at)
            daemon.kill()
    with Daemon(tmp_path) as daemon:
        writer.run(daemon.url, LINES)
        facts = list(changelog(daemon.url))

    users = [json.loads(fact.rows)[0][0] for fact in facts]
    assert [f"@u{number}:hs.example" for number in range(len(users))] == users
    assert len(users) >= LINES
    assert [fact.serial for fact in facts][: len(writer.answered)] == writer.answered
