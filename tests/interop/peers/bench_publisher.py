"""What publishing costs in Synapse 1.66.0's own classes: rows of `events` to many connections, in memory.

bench_publisher.py [--rows N] [--followers N]

Prints one JSON object: rows, followers, us_per_row (CPU time, to all followers), us_per_row_follower,
release.
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


class Sink(StringTransport):
    """Counts the rows written to it, and keeps nothing."""

    def __init__(self):
        StringTransport.__init__(self)
        self.rows = 0

    def write(self, data):
        self.rows += data.count(b"RDATA ")

    def writeSequence(self, data):
        for part in data:
            self.write(part)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--followers", type=int, default=50)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    common.report = current.report = lambda *args, **fields: None

    server = current.Server(argparse.Namespace(server_name="bench", token=1))
    cheap_source(server, "events")
    sinks = [Sink() for _ in range(options.followers)]
    factory = current.ReplicationStreamProtocolFactory(server._hs)  # not the watched one
    for sink in sinks:
        factory.buildProtocol(None).makeConnection(sink)
    row = ["$event:here", "!room:here", "m.room.member", "@user:here", None, None, "join", False, False]

    started = [0.0]

    def begin():
        started[0] = time.process_time()
        server.rows["events"] += [(token, ("ev", row)) for token in range(2, options.rows + 2)]
        server.tokens["events"] = options.rows + 1
        server.wake()
        look()

    def look():
        if min(sink.rows for sink in sinks) < options.rows:
            reactor.callLater(0, look)
            return
        spent = time.process_time() - started[0]
        result = {"what": "publisher", "release": release.NUMBER, "rows": options.rows}
        result["followers"] = options.followers
        result["us_per_row"] = round(spent / options.rows * 1e6, 2)
        result["us_per_row_follower"] = round(spent / options.rows / options.followers * 1e6, 3)
        print(json.dumps(result))
        reactor.stop()

    reactor.callWhenRunning(begin)
    reactor.run()


def cheap_source(server, name):
    """Pages by position: what is measured is the sending, not our stand-in for a database."""

    async def updates(instance_name, from_token, upto_token, limit):
        page = server.rows[name][from_token - 1 : upto_token - 1]
        if len(page) > limit:
            return page[:limit], page[limit - 1][0], True
        return page, upto_token, False

    for stream in server._handler.get_streams().values():
        if name == stream.NAME:
            stream.update_function = updates


if __name__ == "__main__":
    main()
