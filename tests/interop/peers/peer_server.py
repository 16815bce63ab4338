"""A release's own replication server, over streams that we feed. See README.md one folder up.

peer_server.py --server-name S [--port P] [--http-port P] [--token N]

``--token`` is where every stream stands at first; start it again on the same port with a lower one to see a
master whose tokens went back.
"""

import argparse
import json

import release
import rows
from common import report, take_orders
from twisted.internet import reactor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-name", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--token", type=int, default=1)
    options = parser.parse_args()
    server = release.module().Server(options)

    def add(stream, some, token=None):
        token = server.tokens[stream] + 1 if token is None else token
        server.rows[stream] += [(token, row) for row in some]
        server.tokens[stream] = max(token, server.tokens[stream])

    def obey(line):
        order = json.loads(line)
        if "stream" in order:
            add(order["stream"], order.get("rows", []), order.get("token"))
            server.wake()
        elif "facts" in order:
            for stream, some, token in order["facts"]:
                add(stream, some, token)
            server.wake()
        elif "demo" in order:
            for number in range(order["demo"]):
                for stream, some in rows.plausible(server.release, number):
                    add(stream, some)
            server.wake()
        elif "line" in order:
            server.send(order["line"])
        elif "error" in order:
            for connection in server.connections():
                connection.send_error("%s", order["error"])
        elif "drop" in order:
            for connection in server.connections():
                connection.transport.loseConnection()
        elif "quit" in order:
            reactor.stop()
        else:
            raise ValueError("no such order")

    port = reactor.listenTCP(options.port, server.factory, interface="127.0.0.1")
    http = server.http()  # only a current one has this
    http_port = http and reactor.listenTCP(options.http_port, http, interface="127.0.0.1").getHost().port
    report(
        "listening",
        port=port.getHost().port,
        http_port=http_port,
        release=release.NUMBER,
        streams=sorted(server.tokens),
    )
    take_orders(obey)
    reactor.run()


if __name__ == "__main__":
    main()
