"""The table of commands: what each answers, who may send it, and what tools are told of it."""

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import hiredis
import pytest

from synrepl.base.access import Key, Right
from synrepl.channel.resp import cache_commands
from synrepl.channel.resp.commands import COMMANDS, RespCommand
from tests.channel.test_connection import FULL, PART, READER, WRITER, Client, Site

PAGE = Path(__file__).parents[2] / "docs/howto/replace-redis.md"
REPLICA = Key(name="replica", secret="c", rights=frozenset({Right.REPLICATE}))
KEYS = {key.name: key for key in (FULL, READER, WRITER, PART, REPLICA)}

NEEDS = {
    "AUTH x": "",
    "HELLO x": "",
    "QUIT": "",
    "RESET": "",
    "CLIENT GETNAME": "any",
    "CLIENT ID": "any",
    "CLIENT INFO": "any",
    "CLIENT LIST": "any",
    "CLIENT NO-EVICT on": "any",
    "CLIENT NO-TOUCH on": "any",
    "CLIENT SETINFO lib-name x": "any",
    "CLIENT SETNAME x": "any",
    "COMMAND": "any",
    "COMMAND COUNT": "any",
    "COMMAND DOCS": "any",
    "COMMAND INFO": "any",
    "COMMAND LIST": "any",
    "CONFIG GET *": "any",
    "ECHO x": "any",
    "INFO": "any",
    "PING": "any",
    "ROLE": "any",
    "SELECT 1": "any",
    "UNSUBSCRIBE": "any",
    "EXISTS k": "read",
    "GET k": "read",
    "MGET k": "read",
    "PTTL k": "read",
    "PUBSUB NUMSUB hs": "read",
    "SUBSCRIBE hs": "read",
    "TTL k": "read",
    "TYPE k": "read",
    "DEL k": "write",
    "PUBLISH hs x": "write",
    "SET k v": "write",
}
"""A request of each command, and what it takes: nothing, any key, or a right on all streams."""

MAY = {
    "": {"nobody", *KEYS},
    "any": {*KEYS},
    "read": {"full", "reader"},
    "write": {"full", "writer"},
}


def names(commands: Mapping[bytes, RespCommand], prefix: str = "") -> set[str]:
    """All commands of a table, those with subcommands by these."""
    found: set[str] = set()
    for name, command in commands.items():
        words = f"{prefix}{name.decode()}"
        found |= names(command.subcommands, f"{words} ") | ({words} if command.run is not None else set())
    return found


def asked(client: Client, words: str) -> Any:
    """The answer as a client of Redis understands it."""
    reader = hiredis.Reader(encoding="utf-8")
    reader.feed(client.ask(*words.split(" ")).encode())
    return reader.gets()


def test_every_command_is_tried() -> None:
    """Also those that come."""
    known = names(COMMANDS)
    assert known == {" ".join(words.split()[: name_length(words, known)]) for words in NEEDS}


def name_length(words: str, known: set[str]) -> int:
    """How many words of a request are the name of the command."""
    return 2 if " ".join(words.split()[:2]) in known else 1


@pytest.mark.parametrize(("words", "name"), list(product(NEEDS, ["nobody", *KEYS])))
def test_each_command_takes_its_right(words: str, name: str) -> None:
    """The channel carries all streams, and the cache has entries of all rooms."""
    site = Site(*KEYS.values())
    client = site.client(*([KEYS[name].secret or ""] if name in KEYS else []))
    answer = client.ask(*words.split())
    is_refused = answer.startswith(("-NOAUTH", "-NOPERM"))

    assert is_refused is not (name in MAY[NEEDS[words]])


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("EXISTS a b a none", 3),
        ("MGET a none b", ["1", None, "2"]),
        ("TTL a", 100),
        ("PTTL a", 99_600),
        ("TTL none", -2),
        ("PTTL none", -2),
        ("TYPE a", "string"),
        ("TYPE none", "none"),
        ("DEL a none a b", 2),
        ("ECHO hi", "hi"),
        ("CONFIG GET databases", ["databases", "16"]),
        ("CONFIG GET Databases save", ["databases", "16"]),
        ("CONFIG GET *", ["databases", "16", "maxmemory", str(64 * 1024 * 1024)]),
        ("CONFIG GET save", []),
        ("CLIENT ID", 1),
        ("CLIENT GETNAME", None),
        ("ROLE", ["master", 0, []]),
        ("COMMAND COUNT", len(COMMANDS)),
        ("COMMAND LIST", [name.decode().lower() for name in COMMANDS]),
        ("COMMAND INFO get", [["get", 2, ["readonly"], 1, 1, 1, ["@string"]]]),
        ("COMMAND INFO mget none", [["mget", -2, ["readonly"], 1, -1, 1, ["@string"]], None]),
        ("COMMAND INFO hello", [["hello", -1, ["no_auth"], 0, 0, 0, ["@connection"]]]),
        ("COMMAND DOCS get none", ["get", ["summary", "The value of a key.", "group", "string"]]),
    ],
)
def test_answers(words: str, answer: Any) -> None:
    """As Redis gives them, of values that are kept for 100 seconds, 0.4 seconds later."""
    site = Site()
    client = site.client()
    for request in ("SET a 1 EX 100", "SET b 2 EX 100"):
        client.ask(*request.split())
    site.clock.advance(0.4)

    assert answer == asked(client, words)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("GET", "ERR wrong number of arguments for 'get' command"),
        ("GET a b", "ERR wrong number of arguments for 'get' command"),
        ("CLIENT KILL x", "ERR unknown subcommand 'KILL': CLIENT has GETNAME, ID,"),
        ("CLIENT NO-TOUCH maybe", "ERR syntax error"),
        ("CLIENT SETINFO lib-x y", "ERR Unrecognized option 'lib-x'"),
        ("CLIENT LIST TYPE x", "ERR Unknown client type 'x'"),
        ("CLIENT LIST ID", "ERR syntax error"),
        ("CLIENT LIST ID x", "ERR value is not an integer or out of range"),
        ("CLIENT SETNAME " + "x" * 101, "ERR Client names cannot contain"),
        ("RESET x", "ERR wrong number of arguments for 'reset' command"),
        # What django-redis and others ask for (learningequality/studio#6025).
        ("SET k v EX 60 NX", "ERR syntax error: SET takes EX or PX with a number"),
        ("SET k v KEEPTTL", "ERR syntax error: SET takes EX or PX with a number"),
        ("SET k v EX 60 GET XX", "ERR syntax error: SET takes EX or PX with a number"),
    ],
)
def test_wrong_requests_say_what_is_wrong(words: str, error: str) -> None:
    assert str(asked(Site().client(), words)).startswith(error)


def test_several_values_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent in one turn."""
    monkeypatch.setattr(cache_commands, "MAX_TOGETHER", 10)
    client = Site().client()
    client.ask("SET", "k", "v" * 5)

    assert asked(client, "MGET k k") == ["v" * 5] * 2
    assert (
        str(asked(client, "MGET k k k")) == "ERR these values have more than 10 bytes together: ask for fewer"
    )


def test_to_look_at_a_value_is_no_use_of_it() -> None:
    """It does not stay for that, and is neither a hit nor a miss."""
    site = Site()
    client = site.client()
    for key in ("a", "b"):
        client.ask("SET", key, "1")
    for words in ("EXISTS a", "TTL a", "PTTL a", "TYPE a", "EXISTS none"):
        client.ask(*words.split())
    client.ask("CLIENT", "NO-TOUCH", "ON")
    client.ask("GET", "a")

    assert (0, b"a") == next(iter(site.server.cache._entries))
    assert (1, 0) == (site.server.cache.hits, site.server.cache.misses)
    client.ask("CLIENT", "NO-TOUCH", "OFF")
    client.ask("GET", "a")
    assert (0, b"b") == next(iter(site.server.cache._entries))


# -- clients -----------------------------------------------------------------------------------------------


def listed(client: Client, words: str = "CLIENT LIST") -> list[dict[str, str]]:
    """The clients that are named."""
    lines: list[str] = asked(client, words).splitlines()
    return [dict(part.split("=", 1) for part in line.split(" ")) for line in lines]


@pytest.mark.parametrize("words", ["INFO", "INFO replication", "INFO REPLICATION server"])
def test_information_has_the_role_that_hello_tells(words: str) -> None:
    """valkey-glide 2 asks for it as it connects, and else finds no primary (valkey-io/valkey-glide#4670)."""
    assert "role:master" in asked(Site().client(), words).splitlines()


def test_clients_are_listed() -> None:
    """With what they say of themselves, and what the port knows of them."""
    site = Site(FULL, READER)
    client, other = site.client("f"), site.client("r")
    client.ask("CLIENT", "SETNAME", "tool")
    client.ask("CLIENT", "SETINFO", "LIB-NAME", "lib")
    client.ask("CLIENT", "SETINFO", "LIB-VER", "8.1")
    client.ask("SELECT", "3")
    other.ask("SUBSCRIBE", "hs", "hs/x")
    site.clock.advance(5)

    first = {
        "id": "1",
        "addr": "127.0.0.1:5",
        "name": "tool",
        "age": "5",
        "idle": "0",
        "flags": "N",
        "db": "3",
    }
    first |= {"sub": "0", "psub": "0", "user": "full", "resp": "2", "lib-name": "lib", "lib-ver": "8.1"}
    second = {"id": "2", "addr": "127.0.0.1:5", "name": "", "age": "5", "idle": "5", "flags": "P", "db": "0"}
    second |= {"sub": "2", "psub": "0", "user": "reader", "resp": "2", "lib-name": "", "lib-ver": ""}
    assert listed(client) == [first, second]
    assert listed(client, "CLIENT INFO") == [first]
    assert listed(client, "CLIENT LIST ID 2 7") == [second]
    assert listed(client, "CLIENT LIST TYPE pubsub") == [second]
    assert listed(client, "CLIENT LIST TYPE normal") == [first]
    assert listed(client, "CLIENT LIST TYPE replica") == []
    assert asked(client, "CLIENT GETNAME") == "tool"


@pytest.mark.parametrize("name", ["a b", "a\nid=9", "\x1b[2J", "Grüße"])
def test_a_name_is_one_field(name: str) -> None:
    """Else a client could show as two, or as another."""
    client = Site().client()
    assert client.ask("CLIENT", "SETNAME", name).startswith("-ERR Client names cannot contain spaces")
    assert client.ask("HELLO", "3", "SETNAME", name).startswith("-ERR Client names cannot contain spaces")
    assert client.ask("CLIENT", "SETINFO", "lib-name", name).startswith("-ERR lib-name cannot contain spaces")
    assert client.ask("CLIENT", "SETNAME", "").startswith("+OK")


def test_a_limited_key_sees_its_own_clients() -> None:
    """As in the status, which leaves the whole port out for it."""
    site = Site(*KEYS.values())
    clients = {name: site.client(KEYS[name].secret or "") for name in ("full", "part", "writer", "reader")}
    site.client()
    site.client("p")

    seen = {name: [one["user"] for one in listed(client)] for name, client in clients.items()}
    everybody = ["full", "part", "writer", "reader", "", "part"]
    assert seen == {"full": everybody, "reader": everybody, "part": ["part", "part"], "writer": ["writer"]}
    assert listed(clients["part"], "CLIENT LIST ID 1") == []


def test_the_list_is_bounded() -> None:
    site = Site()
    clients = [site.client() for _ in range(201)]
    assert 200 == len(listed(clients[0]))


def test_a_reset_makes_a_connection_as_new() -> None:
    """As pools of connections do before they lend it again."""
    site = Site(FULL)
    client = site.client("f")
    client.ask("HELLO", "3", "SETNAME", "x")
    for words in ("SELECT 3", "CLIENT NO-TOUCH on", "PUBLISH hs POSITION-x", "SUBSCRIBE hs"):
        client.ask(*words.split())
    client.ask("PUBLISH", "hs", "POSITION events w 5 5")
    assert site.channel.limits.count == 1

    assert client.ask("RESET") == "+RESET\r\n"
    assert site.channel.limits.count == 0
    assert 0 == site.channel.count(b"hs")
    assert client.ask("GET", "k").startswith("-NOAUTH")
    assert client.say(b"*11\r\n").startswith("-ERR Protocol error: unauthenticated multibulk length")


def test_after_a_reset_a_client_may_log_in_again() -> None:
    """In time: 30 seconds, from then on."""
    site = Site(FULL)
    client, late = site.client("f"), site.client("f")
    site.clock.advance(29)
    assert client.ask("RESET") == late.ask("RESET") == "+RESET\r\n"
    site.clock.advance(29)
    assert client.ask("AUTH", "f") == "+OK\r\n"
    assert (
        listed(client, "CLIENT INFO")[0].items() >= {"resp": "2", "db": "0", "name": "", "sub": "0"}.items()
    )
    site.clock.advance(1)
    assert "authenticate within 30 seconds" in late.heard()
    assert not client.is_closed


def test_a_reset_ends_a_subscription_of_resp2() -> None:
    client = Site().client()
    client.ask("SUBSCRIBE", "hs")
    assert client.ask("GET", "k").startswith("-ERR Can't execute 'get'")
    assert client.ask("RESET") == "+RESET\r\n"
    assert client.ask("GET", "k") == "$-1\r\n"


# -- what is told of the commands --------------------------------------------------------------------------


def test_the_page_has_every_command() -> None:
    """What a client may ask for is looked up there."""
    text = PAGE.read_text().split("## What clients may ask")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)

    assert names(COMMANDS) == {name for row in rows for name in re.findall("`([A-Z -]+)", row)}


def test_docs_name_every_command() -> None:
    """As redis-cli asks for at its start, and shows beside what is typed."""
    site = Site()
    client = site.client()
    client.ask("HELLO", "3")
    documents = asked(client, "COMMAND DOCS")

    assert {name.lower() for name in map(bytes.decode, COMMANDS)} == set(documents)
    assert set(documents["client"]["subcommands"]) == {
        f"client|{name.decode().lower()}" for name in COMMANDS[b"CLIENT"].subcommands
    }
    assert all(entry["summary"] and entry["group"] for entry in documents.values())
