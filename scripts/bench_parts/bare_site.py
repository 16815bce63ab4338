"""The least site of Twisted that reads a body and answers: what HTTP alone costs.

python -m scripts.bench_parts.bare_site
"""

import sys
from typing import Any

from twisted.internet.endpoints import serverFromString
from twisted.web.resource import Resource
from twisted.web.server import Site

from scripts.bench_parts.children import reactor

ANSWER = b'{"epoch":1,"first_serial":1,"tokens":[1]}'


class _Reader(Resource):
    isLeaf = True

    def render_POST(self, request: Any) -> bytes:
        """Read the body, and answer as an append is answered."""
        request.content.read()
        request.setHeader(b"content-type", b"application/json")
        return ANSWER


def main() -> None:
    """Listen at a free port, print it, and serve until the process is ended."""

    def listening(port: Any) -> None:
        print(port.getHost().port)
        sys.stdout.flush()

    serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(Site(_Reader())).addCallback(listening)
    reactor.run()


if __name__ == "__main__":
    main()
