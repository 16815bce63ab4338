"""A worker made with the library: follows `push_rules`, and sends the lines of its stdin.

``python -m tests.interop.worker PORT DIALECT`` prints one JSON object a line: `connected`, `disconnected`,
`position`, `error`, `rdata`, and `command` for what a server passes on.
"""

import json
import sys
import threading
from typing import Any

from twisted.internet import reactor as twisted_reactor

from synrepl import Dialect, Follower, StreamTable, Updates, connect
from synrepl.wire.codec import Codec
from synrepl.wire.commands import RemoteServerUp
from synrepl.wire.grammar import CLIENT, SERVER

reactor: Any = twisted_reactor


def say(kind: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
    sys.stdout.flush()


def main() -> None:
    port, dialect = sys.argv[1], Dialect.parse(sys.argv[2])
    lines = Codec(dialect, ours=SERVER, theirs=CLIENT)  # reads what a client of this release may say
    follower = Follower(instance="worker", clock=reactor)

    @follower.on(StreamTable.default()["push_rules"])
    def changed(updates: Updates[Any]) -> None:
        say("rdata", stream=updates.stream, token=updates.token, rows=[row.user_id for row in updates.rows])

    @follower.on_command(RemoteServerUp)
    def is_up(command: RemoteServerUp) -> None:
        say("command", name=command.NAME, server=command.server)

    follower.on_event(lambda event: say(event.kind, text=event.text, stream=event.stream, token=event.token))

    def read() -> None:
        for line in sys.stdin.buffer:
            reactor.callFromThread(follower.send, lines.parse(line.rstrip(b"\n")))

    threading.Thread(target=read, daemon=True).start()
    service = connect(reactor, f"tcp:127.0.0.1:{port}", follower, dialect=dialect, server_name="interop.test")
    reactor.callWhenRunning(service.startService)
    reactor.run()


if __name__ == "__main__":
    main()
