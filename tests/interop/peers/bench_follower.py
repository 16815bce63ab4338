"""What following costs in Synapse 1.66.0's own classes: bytes in, parsed rows at the data handler, in memory.

bench_follower.py [--rows N] [--lines FILE] [--server-name S]

FILE holds what a server would send, byte for byte (SERVER, POSITION, RDATA ... lines); without it, N rows of
`events` are made up. Prints one JSON object: rows, us_per_row (CPU time), release.
"""

import argparse
import json
import logging
import time

import common
import current
import release
from twisted.internet import reactor
from twisted.internet.testing import StringTransport

CHUNK = 1 << 16  # what a socket gives at once


def made_up(server_name, count):
    row = ["$event:here", "!room:here", "m.room.member", "@user:here", None, None, "join", False, False]
    text = json.dumps(["ev", row], separators=(",", ":"))
    yield "SERVER %s" % server_name
    yield "POSITION events master 0 0"
    for token in range(1, count + 1):
        yield "RDATA events master %d %s" % (token, text)


class Counter:
    """Stands where a worker's data handler would, and does nothing with the rows."""

    def __init__(self):
        self.rows = 0
        self.positions = {}

    async def on_rdata(self, stream_name, instance_name, token, rows):
        self.rows += len(rows)
        self.positions[stream_name, instance_name] = token

    async def on_position(self, stream_name, instance_name, token):
        self.positions[stream_name, instance_name] = token

    def on_remote_server_up(self, server):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--lines")
    parser.add_argument("--server-name", default="bench")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    common.report = current.report = lambda *args, **fields: None

    if options.lines:
        with open(options.lines, "rb") as file:
            octets = file.read()
    else:
        octets = "".join(line + "\n" for line in made_up(options.server_name, options.rows)).encode()
    wanted = octets.count(b"\nRDATA ") + octets.startswith(b"RDATA ")
    chunks = [octets[start : start + CHUNK] for start in range(0, len(octets), CHUNK)]

    counter = Counter()
    hs = current.HomeServer(options.server_name, "bench_worker", counter)
    handler = hs.get_replication_command_handler()
    for stream in handler.get_streams().values():
        source(stream, counter)
    factory = current.DirectTcpReplicationClientFactory(hs, "bench_worker", handler)
    protocol = factory.buildProtocol(None)
    protocol.makeConnection(StringTransport())

    started = [0.0]

    def feed():
        if chunks:
            protocol.dataReceived(chunks.pop(0))
        elif counter.rows >= wanted:
            spent = time.process_time() - started[0]
            finish(counter.rows, spent)
            return
        reactor.callLater(0, feed)

    def finish(rows, spent):
        result = {"what": "follower", "release": release.NUMBER, "rows": rows}
        result["us_per_row"] = round(spent / max(rows, 1) * 1e6, 2)
        print(json.dumps(result))
        reactor.stop()

    def begin():
        started[0] = time.process_time()
        feed()

    reactor.callWhenRunning(begin)
    reactor.run()


def source(stream, counter):
    """A source with nothing to catch up on."""

    async def updates(instance_name, from_token, upto_token, limit):
        return [], upto_token, False

    stream.update_function = updates
    stream.current_token = lambda instance: counter.positions.get((stream.NAME, instance), 0)


if __name__ == "__main__":
    main()
