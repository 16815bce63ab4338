"""A release's own replication client. See README.md one folder up.

peer_client.py HOST:PORT --server-name S [--name N] [--from STREAM=TOKEN]... [--syncing USER]...
               [--http HOST:PORT] [--writer NAME]...

``--from`` says where this client believes to be (`all` for every stream); a legacy client otherwise says NOW,
a current one 0. ``--http`` is where a current client fetches what it missed, of the main process and of each
``--writer``; otherwise it is told that there was nothing.
"""

import argparse

import release
from common import report, take_orders
from twisted.internet import reactor


def start_of(text):
    stream, _, token = text.partition("=")
    return stream, token if token == "NOW" else int(token)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--server-name", required=True)
    parser.add_argument("--name", default="peer")
    parser.add_argument("--from", dest="start", action="append", default=[], type=start_of)
    parser.add_argument("--syncing", action="append", default=[])
    parser.add_argument("--http")
    parser.add_argument("--writer", action="append", default=[])
    options = parser.parse_args()
    options.start = dict(options.start)
    host, _, port = options.target.rpartition(":")
    client = release.module().Client(options)

    def obey(line):
        if line == "quit":
            reactor.stop()
        elif line == "drop":
            client.drop()
        else:
            client.send(line)

    report("started", release=release.NUMBER)
    client.start(host, int(port))
    take_orders(obey)
    reactor.run()


if __name__ == "__main__":
    main()
