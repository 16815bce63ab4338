"""Commands of a client about its own connection, and about those of others."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from synrepl.base.version import daemon_version
from synrepl.channel import resp_codec as resp
from synrepl.channel.resp.client import MAX_LISTED, RefusedRequest, RespClient, shown_word, whole_number

DATABASES: Final = 16
MAX_NAME: Final = 100
"""The most bytes of what a client says of itself."""

Words = Sequence[bytes]


def auth(client: RespClient, words: Words) -> bytes:
    client.authenticate(words[0] if len(words) == 2 else b"default", words[-1])
    return resp.OK


def hello(client: RespClient, words: Words) -> bytes:
    encoding = client.encoding
    if words:
        if not words[0].isdigit():
            raise RefusedRequest("ERR Protocol version is not an integer or out of range")
        if words[0] not in resp.ENCODINGS:
            raise RefusedRequest("NOPROTO unsupported protocol version")
        encoding = resp.ENCODINGS[words[0]]
    login, name = _hello_options(words[1:])
    if login:
        client.authenticate(*login)
    if client.access is None:
        raise RefusedRequest(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto>"
            " AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol"
            " version at the same time"
        )
    if name is not None:
        client.name = name
    client.speak(encoding)
    return encoding.map(
        {
            b"server": resp.bulk(b"synrepl"),
            b"version": resp.bulk(daemon_version().encode()),
            b"proto": resp.integer(encoding.number),
            b"id": resp.integer(client.id),
            b"mode": resp.bulk(b"standalone"),
            b"role": resp.bulk(b"master"),
            b"modules": resp.array([]),
        }
    )


def _hello_options(words: Words) -> tuple[tuple[bytes, bytes] | None, str | None]:
    """Return the user and the password of AUTH, and the name of SETNAME; None for what is not given."""
    login: tuple[bytes, bytes] | None = None
    name: str | None = None
    rest = list(words)
    while rest:
        option = rest.pop(0)
        if option.upper() == b"AUTH" and len(rest) >= 2:
            login = rest.pop(0), rest.pop(0)
        elif option.upper() == b"SETNAME" and rest:
            name = _plain(rest.pop(0), "Client names")
        else:
            raise RefusedRequest(f"ERR Syntax error in HELLO option '{shown_word(option)}'")
    return login, name


def leave(client: RespClient, words: Words) -> bytes:
    client.is_closing = True
    return resp.OK


def reset(client: RespClient, words: Words) -> bytes:
    client.reset()
    return b"+RESET\r\n"


def ping(client: RespClient, words: Words) -> bytes:
    if client.channels and client.encoding is resp.RESP2:
        return resp.array([resp.bulk(b"pong"), resp.bulk(words[0] if words else b"")])
    return resp.bulk(words[0]) if words else resp.PONG


def echo(client: RespClient, words: Words) -> bytes:
    return resp.bulk(words[0])


def select(client: RespClient, words: Words) -> bytes:
    number = whole_number(words[0])
    if not 0 <= number < DATABASES:
        raise RefusedRequest("ERR DB index is out of range")
    client.database = number
    return resp.OK


def client_id(client: RespClient, words: Words) -> bytes:
    return resp.integer(client.id)


def get_name(client: RespClient, words: Words) -> bytes:
    return resp.bulk(client.name.encode()) if client.name else client.encoding.null


def set_name(client: RespClient, words: Words) -> bytes:
    client.name = _plain(words[0], "Client names")
    return resp.OK


def set_info(client: RespClient, words: Words) -> bytes:
    field = words[0].lower()
    if field not in (b"lib-name", b"lib-ver"):
        raise RefusedRequest(f"ERR Unrecognized option '{shown_word(words[0])}'")
    client.library[field.decode()] = _plain(words[1], field.decode())
    return resp.OK


def set_eviction(client: RespClient, words: Words) -> bytes:
    """This port disconnects nobody to make space for values: there is nothing to change."""
    _switch(words[0])
    return resp.OK


def set_touching(client: RespClient, words: Words) -> bytes:
    client.is_touching = not _switch(words[0])
    return resp.OK


def client_info(client: RespClient, words: Words) -> bytes:
    return client.encoding.text(f"{_line(client)}\n".encode())


def client_list(client: RespClient, words: Words) -> bytes:
    is_asked = _list_options(words)
    found = islice(filter(is_asked, client.seen_clients()), MAX_LISTED)
    return client.encoding.text("".join(f"{_line(one)}\n" for one in found).encode())


def _list_options(words: Words) -> Callable[[RespClient], bool]:
    """Return which clients the options of CLIENT LIST ask for."""
    if not words:
        return lambda one: True
    option, values = words[0].upper(), words[1:]
    if option == b"ID" and values:
        ids = {whole_number(word) for word in values}
        return lambda one: one.id in ids
    if option == b"TYPE" and len(values) == 1:
        kind = values[0].lower()
        if kind not in (b"normal", b"pubsub", b"master", b"replica", b"slave"):
            raise RefusedRequest(f"ERR Unknown client type '{shown_word(values[0])}'")
        # None is a Redis that replicates.
        return lambda one: kind == (b"pubsub" if one.channels else b"normal")
    raise RefusedRequest("ERR syntax error")


def _line(client: RespClient) -> str:
    """Return a client as in CLIENT LIST: what this daemon knows of it. No value may have a space."""
    now = client.server.clock.seconds()
    fields = {
        "id": client.id,
        "addr": "".join(client.peer.split()),
        "name": client.name,
        "age": int(now - client.since),
        "idle": int(now - client.active_at),
        "flags": "P" if client.channels else "N",
        "db": client.database,
        "sub": len(client.channels),
        "psub": 0,
        "user": client.user,
        "resp": client.encoding.number,
        "lib-name": client.library.get("lib-name", ""),
        "lib-ver": client.library.get("lib-ver", ""),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _plain(word: bytes, what: str) -> str:
    """Return what a client says of itself; it must not look like more than one field of CLIENT LIST."""
    if len(word) > MAX_NAME or not all(0x21 <= byte <= 0x7E for byte in word):
        most = f"nor more than {MAX_NAME} bytes."
        raise RefusedRequest(f"ERR {what} cannot contain spaces, newlines or special characters, {most}")
    return word.decode()


def _switch(word: bytes) -> bool:
    if word.upper() not in (b"ON", b"OFF"):
        raise RefusedRequest("ERR syntax error")
    return word.upper() == b"ON"
