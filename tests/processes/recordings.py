"""Recordings of a real deployment on Redis, what they say, and the deployment's other end: its HTTP API.

They are of Synapse 1.163.2 (main process, five workers, PostgreSQL), with a second homeserver, on SQLite, on
the same Redis: its start, and some two minutes of traffic right after it. A line is the time in Unix
milliseconds, the channel, and the payload, with tabs between.

Nothing of the code under test is used here: what a recording holds is worked out from its text alone.
"""

import gzip
import http.server
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from tests.captures import GOLDEN
from tests.processes.channel import BY_ALL, Fact, compact

__all__ = ["OTHER_SERVER", "SERVER", "Message", "Peers", "RecordedState", "recording", "said_by"]

SERVER: Final = "localhost:52673"
OTHER_SERVER: Final = "localhost:37905"
EPHEMERAL: Final = frozenset({"typing", "presence", "presence_federation", "federation"})


class Message(NamedTuple):
    """One published message."""

    at_ms: int
    channel: str
    payload: str


def recording(*names: str) -> list[Message]:
    """All messages of these recordings, one after the other."""
    found = []
    for name in names:
        text = gzip.decompress((GOLDEN / "redis" / f"{name}.txt.gz").read_bytes()).decode()
        for line in text.splitlines():
            at_ms, channel, payload = line.split("\t")
            found.append(Message(int(at_ms), channel, payload))
    return found


class RecordedState:
    """What a server's processes had told by some moment: the facts, and where each writer stands."""

    def __init__(self, messages: Iterable[Message] = (), *, server: str = SERVER) -> None:
        self.facts: list[Fact] = []
        """In the order in which they were first told; who tells another's fact again tells nothing."""
        self.positions: dict[tuple[str, str], int] = {}
        self.by_writer: dict[tuple[str, str], dict[int, list[Any]]] = defaultdict(dict)
        self._server = server
        self._known: set[tuple[str, ...]] = set()
        self._begun: dict[tuple[str, str], list[Any]] = {}
        for message in messages:
            self.add(message)

    @property
    def in_batch(self) -> bool:
        """Whether a fact was begun, and not ended."""
        return bool(self._begun)

    def add(self, message: Message) -> None:
        """This was said, too."""
        if message.channel != self._server:
            return
        command, _, rest = message.payload.partition(" ")
        if command == "POSITION":
            stream, writer, _, at = rest.split(" ")
            self.positions[stream, writer] = int(at)
        elif command == "RDATA":
            stream, writer, at, row = rest.split(" ", 3)
            key = stream, writer
            rows = [*self._begun.pop(key, []), json.loads(row)]
            if at == "batch":
                self._begun[key] = rows
                return
            token = int(at)
            # Of backfill the highest comes first: the lower ones lead nowhere.
            self.positions[key] = max(token, self.positions.get(key, 0))
            self.by_writer[key].setdefault(token, rows)
            text = compact(rows)
            identity = (stream, at, text) if stream in BY_ALL else (stream, writer, at)
            if identity not in self._known:
                self._known.add(identity)
                self.facts.append(Fact(stream, writer, token, text))

    def kept(self) -> list[Fact]:
        """Those of streams that are stored."""
        return [fact for fact in self.facts if fact.stream not in EPHEMERAL]


def said_by(told: RecordedState) -> list[str]:
    """What all its processes answer to REPLICATE."""
    return [
        f"POSITION {stream} {writer} {token} {token}" for (stream, writer), token in told.positions.items()
    ]


class Peers:
    """The processes of a recording as they are asked over HTTP for what was missed; all on one port.

    They know what `told` has at the moment. Whom a request is for its ``Host`` header says. As real ones do,
    they give pages that may hold later facts than were asked for, backfill from the highest down.
    """

    def __init__(self, told: RecordedState, *, secret: str, page_rows: int = 100) -> None:
        self.told = told
        self.asked: list[tuple[str, str, int, int]] = []
        self.failures_left = 0
        self._secret = secret
        self._page_rows = page_rows
        self._gate = threading.Lock()
        peers = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                code, answer = peers.answer(self.headers, self.path)
                body = json.dumps(answer, separators=(",", ":")).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Who asks is killed now and then."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, headers: Any, target: str) -> tuple[int, dict[str, Any]]:
        """What the process in question says to this."""
        parts = urlsplit(target)
        *before, stream, txn_id = parts.path.split("/")
        wrong = before != ["", "_synapse", "replication", "get_repl_stream_updates"] or not txn_id
        with self._gate:
            if headers.get("Authorization") != f"Bearer {self._secret}" or wrong:
                return 500, {"errcode": "M_UNKNOWN", "error": "Internal server error"}
            if self.failures_left:
                self.failures_left -= 1
                return 500, {"errcode": "M_UNKNOWN", "error": "Internal server error"}
            writer = str(headers.get("Host", "")).rpartition(":")[0]
            query = parse_qs(parts.query)
            after, upto = int(query["from_token"][0]), int(query["upto_token"][0])
            self.asked.append((stream, writer, after, upto))
            return 200, self._page(stream, writer, after, upto)

    def _page(self, stream: str, writer: str, after: int, upto: int) -> dict[str, Any]:
        known: dict[int, list[Any]] = {}
        for (name, teller), facts in list(self.told.by_writer.items()):
            if name == stream and (teller == writer or stream in BY_ALL):
                known |= facts
        # Caches have no upper bound there.
        wanted = sorted(token for token in known if after < token and (token <= upto or stream == "caches"))
        if stream == "backfill":
            wanted.reverse()
        updates: list[list[Any]] = []
        for position, token in enumerate(wanted):
            updates += [[token, row] for row in known[token]]
            if len(updates) >= self._page_rows and position + 1 < len(wanted):
                return {"updates": updates, "upto_token": token, "limited": True}
        return {"updates": updates, "upto_token": upto, "limited": False}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def names(told: RecordedState) -> Sequence[str]:
    """Every writer."""
    return sorted({writer for _, writer in told.positions})
