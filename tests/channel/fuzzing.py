"""Target of the RESP port: the requests of a Redis client, and the lines that it publishes."""

from collections.abc import Mapping
from typing import Final

from scripts.fuzz_parts.target import Target, conversed, words
from synrepl.channel import resp_codec as resp
from tests.channel.test_connection import FULL, Site


class RespTarget(Target):
    """A connection to the port of a daemon, with another one that subscribes.

    The first byte of the input is the seed by which the rest is split, and by its lowest bit says whether the
    daemon has keys.
    """

    def seeds(self) -> list[bytes]:
        asked = (
            "PING|SET k v PX 100|GET k|SELECT 1|INFO|HELLO 2|CLIENT SETNAME x",
            "AUTH f|PUBLISH hs x|SUBSCRIBE hs hs/USER_IP|PING|UNSUBSCRIBE|QUIT",
            "PUBLISH hs/USER_IP x|HELLO 2 AUTH default f|SET k v EX 1",
            "HELLO 3 AUTH default f SETNAME x|SUBSCRIBE hs|PUBLISH hs x|CLIENT LIST|MGET k l|RESET",
            "COMMAND DOCS|CLIENT SETINFO lib-name x|DEL k|PTTL k|TYPE k|CONFIG GET *|ECHO x|HELLO 2",
        )
        lines = ["REPLICATE ", "POSITION events w 1 5", "RDATA events w batch [1]", "RDATA events w 6 [2]"]
        published = [["PUBLISH", "hs", line] for line in lines]
        found = [[request.split(" ") for request in one.split("|")] for one in asked] + [published]
        encoded = [
            b"".join(resp.array(resp.bulk(word.encode()) for word in request) for request in requests)
            for requests in found
        ]
        return [bytes([seed]) + data for data in encoded for seed in (0, 1, 2, 3)] + [
            b"\0PING\r\nGET k\r\nECHO \"a \\x41\" 'b'\r\n"
        ]

    def run(self, data: bytes) -> object:
        seed, text = (*data[:1], 0)[0], data[1:]
        site = Site(*([FULL] if seed & 1 else []))
        subscriber = site.client(*(["f"] if seed & 1 else []))
        subscriber.ask("SUBSCRIBE", "hs")
        connection = type(subscriber)(site).protocol
        said, is_closed = conversed(connection, site.clock, text, seed >> 1)
        site.clock.pump([1.0] * 6)
        site.channel.stop()
        return words(said), is_closed, bool(subscriber.transport.value()), bool(site.ingested)


TARGETS: Final[Mapping[str, type[Target]]] = {"resp": RespTarget}
