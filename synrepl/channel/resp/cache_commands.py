"""Commands of the cache that the homeserver keeps at this port."""

from collections.abc import Sequence
from typing import Final

from synrepl.channel import resp_codec as resp
from synrepl.channel.resp.cache import DEFAULT_MS, MAX_VALUE
from synrepl.channel.resp.client import RefusedRequest, RespClient, whole_number

MAX_MS: Final = 10 * 365 * 86_400_000
"""The longest expiry, in milliseconds."""

MAX_TOGETHER: Final = MAX_VALUE
"""The most bytes of the values of one reply: it is made in one turn."""

Words = Sequence[bytes]


def get(client: RespClient, words: Words) -> bytes:
    value = client.server.cache.get((client.database, words[0]), client.is_touching)
    return client.encoding.null if value is None else resp.bulk(value)


def get_several(client: RespClient, words: Words) -> bytes:
    cache, replies, size = client.server.cache, [], 0
    for word in words:
        value = cache.get((client.database, word), client.is_touching)
        size += 0 if value is None else len(value)
        if size > MAX_TOGETHER:
            raise RefusedRequest(
                f"ERR these values have more than {MAX_TOGETHER} bytes together: ask for fewer"
            )
        replies.append(client.encoding.null if value is None else resp.bulk(value))
    return resp.array(replies)


def put(client: RespClient, words: Words) -> bytes:
    ms = DEFAULT_MS
    if len(words) > 2:
        factor = {b"EX": 1000, b"PX": 1}.get(words[2].upper())
        if factor is None or len(words) != 4:
            raise RefusedRequest("ERR syntax error: SET takes EX or PX with a number, and nothing else")
        ms = whole_number(words[3]) * factor
        if not 0 < ms <= MAX_MS:
            raise RefusedRequest("ERR invalid expire time in 'set' command")
    if len(words[1]) > MAX_VALUE:
        raise RefusedRequest(f"ERR the value has more than {MAX_VALUE} bytes")
    client.server.cache.set((client.database, words[0]), words[1], ms)
    return resp.OK


def delete(client: RespClient, words: Words) -> bytes:
    return resp.integer(sum(client.server.cache.delete((client.database, word)) for word in words))


def exists(client: RespClient, words: Words) -> bytes:
    return resp.integer(sum(_ms_left(client, word) is not None for word in words))


def ttl(client: RespClient, words: Words) -> bytes:
    ms = _ms_left(client, words[0])
    return resp.integer(-2 if ms is None else (ms + 500) // 1000)


def pttl(client: RespClient, words: Words) -> bytes:
    ms = _ms_left(client, words[0])
    return resp.integer(-2 if ms is None else ms)


def kind(client: RespClient, words: Words) -> bytes:
    return b"+none\r\n" if _ms_left(client, words[0]) is None else b"+string\r\n"


def _ms_left(client: RespClient, key: bytes) -> int | None:
    return client.server.cache.ms_left((client.database, key))
