"""The commands of the RESP port: one table, from which requests are answered, checked and described.

They are those that Synapse, `synrepl inspect`, redis-cli, and clients and tools of Redis with their defaults
need.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from synrepl.base.access import Right
from synrepl.base.rights import Operation, missing_right
from synrepl.channel import resp_codec as resp
from synrepl.channel.resp import cache_commands as cache
from synrepl.channel.resp import connection_commands as connection
from synrepl.channel.resp.cache import MAX_BYTES
from synrepl.channel.resp.client import RefusedRequest, RespClient, shown_word
from synrepl.wire.scope import ALL_STREAMS

Words = Sequence[bytes]
ANY: Final = 1_000
"""More words than a request may have (`resp.RequestLimits`)."""

MANY: Final = 8
"""A request with more words is costly, whatever it is: most commands do something for each."""

NO_KEYS: Final = (0, 0, 0)
ONE_KEY: Final = (1, 1, 1)
ALL_KEYS: Final = (1, -1, 1)


READ: Final = Operation("read at the RESP port", Right.READ, ALL_STREAMS)
WRITE: Final = Operation("write at the RESP port", Right.WRITE, ALL_STREAMS)
"""On all streams: the channel carries all, and the cache has entries of all rooms."""


class RespCommand(NamedTuple):
    """A command: `words` are the fewest and the most that it takes.

    `keys` are the places of its keys, as COMMAND tells them: the first, the last, and the step. Without `run`
    it is answered only with one of its `subcommands`. A client may send it `before_auth`, and a subscriber
    that speaks RESP2 if it `is_for_subscribers`. What it costs grows with the keys, the clients, the
    commands, or the streams of the channel if it `is_costly`.
    """

    run: Callable[[RespClient, Words], bytes] | None
    summary: str
    group: str = "connection"
    words: tuple[int, int] = (0, 0)
    takes: Operation | None = None
    keys: tuple[int, int, int] = NO_KEYS
    subcommands: Mapping[bytes, "RespCommand"] = {}
    before_auth: bool = False
    is_for_subscribers: bool = False
    is_costly: bool = False


def answer(client: RespClient, words: Words) -> bytes:
    """Do what a request asks for, and return the reply. Raises `RemoteProtocolError` like `publish`."""
    name = words[0].upper()
    command = COMMANDS.get(name)
    if command is None:
        return resp.error(f"ERR unknown command '{shown_word(words[0])}': this is synrepl, and no Redis")
    if client.channels and client.encoding is resp.RESP2 and not command.is_for_subscribers:
        return resp.error(
            f"ERR Can't execute '{name.decode().lower()}': only SUBSCRIBE / UNSUBSCRIBE / PING / QUIT / RESET"
            " are allowed in this context"
        )
    if not command.before_auth:
        if client.server.channel is None:
            # Before authentication too: a proxy that checks the port has no password.
            # Closed, since a client that is refused a subscription may not ask again: it connects again.
            client.is_closing = True
            return resp.error(f"LOADING {client.server.why_closed}")
        if client.access is None:
            return resp.error("NOAUTH Authentication required.")
    try:
        return _run(client, name, command, words[1:])
    except RefusedRequest as refused:
        return resp.error(str(refused))


def _run(client: RespClient, name: bytes, command: RespCommand, words: Words) -> bytes:
    if command.is_costly or len(words) > MANY:
        client.is_costly = True
        client.publish()
    if command.subcommands and words:
        subcommand = command.subcommands.get(words[0].upper())
        if subcommand is None:
            known = ", ".join(one.decode() for one in command.subcommands)
            raise RefusedRequest(
                f"ERR unknown subcommand '{shown_word(words[0])}': {name.decode()} has {known} here"
            )
        return _run(client, name + b"|" + words[0].upper(), subcommand, words[1:])
    if command.run is None or not command.words[0] <= len(words) <= command.words[1]:
        raise RefusedRequest(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
    if command.takes is not None:
        assert client.access is not None
        if why := missing_right(client.access, command.takes):
            raise RefusedRequest(f"NOPERM {why}")
    return command.run(client, words)


# -- channels ----------------------------------------------------------------------------------------------


def _subscribe(client: RespClient, words: Words) -> bytes:
    client.subscribe(words)
    return b""


def _unsubscribe(client: RespClient, words: Words) -> bytes:
    return client.unsubscribe(words)


def _publish(client: RespClient, words: Words) -> bytes:
    return resp.integer(client.publish_line(*words))


def _count_subscribers(client: RespClient, words: Words) -> bytes:
    return resp.array(
        part for name in words for part in (resp.bulk(name), resp.integer(client.channel.count(name)))
    )


# -- the port ----------------------------------------------------------------------------------------------


def _info(client: RespClient, words: Words) -> bytes:
    # Clients that know replicas look for the primary by its role as they connect (valkey-glide).
    numbers = {"role": "master", **client.server.info()}
    text = "".join(f"{name}:{value}\r\n" for name, value in numbers.items())
    return client.encoding.text(f"# synrepl\r\n{text}".encode())


def _role(client: RespClient, words: Words) -> bytes:
    # As in INFO. A daemon that is a replica serves the channel of its primary: what is published reaches all.
    return resp.array([resp.bulk(b"master"), resp.integer(0), resp.array([])])


SETTINGS: Final = {b"databases": connection.DATABASES, b"maxmemory": MAX_BYTES}
"""The settings of a Redis that this port has too, for CONFIG GET of their names, or of all with `*`."""


def _settings(client: RespClient, words: Words) -> bytes:
    asked = {word.lower() for word in words}
    found = {name: resp.bulk(b"%d" % value) for name, value in SETTINGS.items() if asked & {name, b"*"}}
    return client.encoding.map(found)


def _count_commands(client: RespClient, words: Words) -> bytes:
    return resp.integer(len(COMMANDS))


def _list_commands(client: RespClient, words: Words) -> bytes:
    return resp.array(resp.bulk(name.lower()) for name in COMMANDS)


def _describe_commands(client: RespClient, words: Words) -> bytes:
    """An entry has the seven parts that Redis gave it before 7.0, which all clients know."""
    replies: list[bytes] = []
    for name in words or COMMANDS:
        command = COMMANDS.get(name.upper())
        if command is None:
            replies.append(client.encoding.null_array)
            continue
        fewest, most = command.words
        arity = fewest + 1 if fewest == most and not command.subcommands else -(fewest + 1)
        if command.run is None:
            arity = -2
        sets = [[*map(resp.bulk, _flags(command))], [resp.bulk(b"@" + command.group.encode())]]
        flags, categories = map(client.encoding.set, sets)
        numbers = [resp.integer(number) for number in (arity, *command.keys)]
        replies.append(resp.array([resp.bulk(name.lower()), numbers[0], flags, *numbers[1:], categories]))
    return resp.array(replies)


def _flags(command: RespCommand) -> Iterator[bytes]:
    if command.keys != NO_KEYS:
        yield b"readonly" if command.takes is READ else b"write"
    if command.group == "pubsub":
        yield b"pubsub"
    if command.before_auth:
        yield b"no_auth"


def _document_commands(client: RespClient, words: Words) -> bytes:
    names = [name.upper() for name in words] or list(COMMANDS)
    return _documents(client, {name: COMMANDS[name] for name in names if name in COMMANDS}, b"")


def _documents(client: RespClient, commands: Mapping[bytes, RespCommand], prefix: bytes) -> bytes:
    found: dict[bytes, bytes] = {}
    for name, command in commands.items():
        about = {b"summary": resp.bulk(command.summary.encode()), b"group": resp.bulk(command.group.encode())}
        if command.subcommands:
            about[b"subcommands"] = _documents(client, command.subcommands, name + b"|")
        found[(prefix + name).lower()] = client.encoding.map(about)
    return client.encoding.map(found)


# -- the table ---------------------------------------------------------------------------------------------

CLIENT: Final = {
    b"GETNAME": RespCommand(connection.get_name, "The name of this connection."),
    b"ID": RespCommand(connection.client_id, "The number of this connection."),
    b"INFO": RespCommand(connection.client_info, "This connection, as in CLIENT LIST."),
    b"LIST": RespCommand(
        connection.client_list,
        "The connections: at most 200; with a key that is limited, those of this key.",
        words=(0, ANY),
        is_costly=True,
    ),
    b"NO-EVICT": RespCommand(connection.set_eviction, "Changes nothing here.", words=(1, 1)),
    b"NO-TOUCH": RespCommand(
        connection.set_touching, "Whether values that are read stay in the cache.", words=(1, 1)
    ),
    b"SETINFO": RespCommand(connection.set_info, "Set lib-name or lib-ver of this connection.", words=(2, 2)),
    b"SETNAME": RespCommand(connection.set_name, "Set the name of this connection.", words=(1, 1)),
}

COMMAND: Final = {
    b"COUNT": RespCommand(_count_commands, "The number of commands.", "server"),
    b"DOCS": RespCommand(_document_commands, "What commands do.", "server", (0, ANY)),
    b"INFO": RespCommand(_describe_commands, "The form of commands.", "server", (0, ANY)),
    b"LIST": RespCommand(_list_commands, "The names of the commands.", "server"),
}

CONFIG: Final = {
    b"GET": RespCommand(_settings, "The settings databases and maxmemory.", "server", (1, ANY)),
}

PUBSUB: Final = {
    b"NUMSUB": RespCommand(
        _count_subscribers, "How many subscribe to channels.", "pubsub", (0, ANY), READ, is_costly=True
    ),
}

COMMANDS: Final[Mapping[bytes, RespCommand]] = {
    b"AUTH": RespCommand(connection.auth, "Authenticate.", words=(1, 2), before_auth=True, is_costly=True),
    b"CLIENT": RespCommand(None, "About connections.", subcommands=CLIENT),
    b"COMMAND": RespCommand(
        _describe_commands, "About commands.", "server", is_costly=True, subcommands=COMMAND
    ),
    b"CONFIG": RespCommand(None, "About settings.", "server", subcommands=CONFIG),
    b"DEL": RespCommand(cache.delete, "Remove values.", "generic", (1, ANY), WRITE, keys=ALL_KEYS),
    b"ECHO": RespCommand(connection.echo, "The same words again.", words=(1, 1)),
    b"EXISTS": RespCommand(
        cache.exists, "How many keys have values.", "generic", (1, ANY), READ, keys=ALL_KEYS
    ),
    b"GET": RespCommand(cache.get, "The value of a key.", "string", (1, 1), READ, keys=ONE_KEY),
    b"HELLO": RespCommand(
        connection.hello,
        "Choose RESP2 or RESP3; AUTH and SETNAME in one.",
        words=(0, ANY),
        before_auth=True,
        is_costly=True,
    ),
    b"INFO": RespCommand(_info, "Numbers of this port.", "server", (0, ANY), is_costly=True),
    b"MGET": RespCommand(
        cache.get_several, "The values of keys: at most 1 MiB.", "string", (1, ANY), READ, keys=ALL_KEYS
    ),
    b"PING": RespCommand(
        connection.ping, "Whether this port is there.", words=(0, 1), is_for_subscribers=True
    ),
    b"PTTL": RespCommand(
        cache.pttl, "How long a value is kept, in ms.", "generic", (1, 1), READ, keys=ONE_KEY
    ),
    b"PUBLISH": RespCommand(_publish, "Publish a line.", "pubsub", (2, 2), WRITE),
    b"PUBSUB": RespCommand(None, "About channels.", "pubsub", subcommands=PUBSUB),
    b"QUIT": RespCommand(connection.leave, "End the connection.", before_auth=True, is_for_subscribers=True),
    b"RESET": RespCommand(
        connection.reset,
        "Make the connection as new.",
        before_auth=True,
        is_for_subscribers=True,
        is_costly=True,
    ),
    b"ROLE": RespCommand(_role, "The role: master."),
    b"SELECT": RespCommand(connection.select, "Use one of 16 databases of the cache.", words=(1, 1)),
    b"SET": RespCommand(
        cache.put, "Keep a value, for an hour or with EX or PX.", "string", (2, ANY), WRITE, keys=ONE_KEY
    ),
    b"SUBSCRIBE": RespCommand(
        _subscribe,
        "Get the lines of channels.",
        "pubsub",
        (1, ANY),
        READ,
        is_for_subscribers=True,
        is_costly=True,
    ),
    b"TTL": RespCommand(
        cache.ttl, "How long a value is kept, in seconds.", "generic", (1, 1), READ, keys=ONE_KEY
    ),
    b"TYPE": RespCommand(cache.kind, "The type of a value: string.", "generic", (1, 1), READ, keys=ONE_KEY),
    b"UNSUBSCRIBE": RespCommand(
        _unsubscribe, "Get no more lines.", "pubsub", (0, ANY), is_for_subscribers=True
    ),
}
