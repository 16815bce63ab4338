"""A worker with several addresses, which tells each fact, and each one that it must give up.

Run with the endpoints and the HTTP addresses of the daemons, each with commas.
"""

import json
import os
import sys
from typing import Any

from twisted.internet import reactor

from synrepl import Follower, FollowerEvent, StreamTable, Updates, connect

STREAMS = ("events", "receipts", "to_device")


def tell(**line: Any) -> None:
    """On standard output, at once."""
    os.write(1, json.dumps(line).encode() + b"\n")


def show(updates: Updates[Any]) -> None:
    """A fact."""
    tell(type="rdata", stream=updates.stream, writer=updates.writer, token=updates.token, rows=updates.rows)


def watch(event: FollowerEvent) -> None:
    """Anything else that it must know."""
    if event.kind in ("went_back", "restarted", "error", "moved"):
        tell(type=event.kind, stream=event.stream, writer=event.writer, token=event.token, message=event.text)


def main(endpoints: str, urls: str) -> None:
    """Follow until killed."""
    table = StreamTable.default()
    follower = Follower(instance="worker", start="earliest", raw=True)
    for name in STREAMS:
        follower.on(table[name])(show)
    follower.on_event(watch)
    service = connect(reactor, endpoints.split(","), follower, http=urls.split(","))
    run: Any = reactor
    run.callWhenRunning(service.startService)
    run.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
