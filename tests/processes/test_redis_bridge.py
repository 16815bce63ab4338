"""Daemons that tell their own facts on Redis, and pass on what concerns others: once, and no further."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes.channel import (
    SERVER,
    Fact,
    Listener,
    Speaker,
    Tail,
    ascends,
    compact,
    described,
    eventually,
    kept,
    knows,
    on_redis,
    redis_of,
    status,
    wait_until_writing,
)
from tests.processes.deployment import rows_of
from tests.processes.loading import LONG, Asker, RawReader, Refused, drawn_seed, report, size
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon

IDLE_SECONDS: Final = 10.0
FACTS: Final = size(300, 5_000)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with RedisServer() as server:
        yield server


def wait(seconds: float) -> None:
    """See that nothing happens."""
    threading.Event().wait(seconds)


def post(daemon: Daemon, stream: str, numbers: range, *, at_once: int = 10) -> None:
    """Facts with these numbers."""
    with Asker(daemon.url) as asker:
        for trimmed_upto in range(numbers.start, numbers.stop, at_once):
            some = range(trimmed_upto, min(trimmed_upto + at_once, numbers.stop))
            asker.post(stream, [rows_of(stream, number) for number in some])


def told_on(listener: Listener) -> Counter[Fact]:
    """Every fact that was told on Redis; rows that never ended are none."""
    found: Counter[Fact] = Counter()
    begun: dict[tuple[str, str], list[Any]] = {}
    for payload in listener.payloads("RDATA", SERVER):
        _, stream, writer, at, row = payload.split(" ", 4)
        rows = begun.setdefault((stream, writer), [])
        rows.append(json.loads(row))
        if at != "batch":
            found[Fact(stream, writer, int(at), compact(begun.pop((stream, writer))))] += 1
    return found


def test_every_fact_is_told_once_and_nothing_goes_round(tmp_path: Path, redis: RedisServer) -> None:
    """Two that hear each other and both tell `caches` must not tell what they heard."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        alpha = stack.enter_context(on_redis(tmp_path, redis, "alpha", writes="receipts,caches"))
        beta = stack.enter_context(on_redis(tmp_path, redis, "beta", writes="to_device,caches"))
        # The third only listens, and gives `middle`, which nobody can tell from `current`.
        gamma = stack.enter_context(on_redis(tmp_path, redis, "gamma", "--dialect", "middle"))
        tails = [
            stack.enter_context(Tail(daemon, dialect, "--from", "earliest", cwd=tmp_path))
            for daemon, dialect in ((beta, "legacy"), (gamma, "middle"), (beta, "current"))
        ]
        for daemon in (alpha, beta):
            wait_until_writing(daemon)
        for tail in tails:
            tail.wait_for_line('"server"')

        posting = [
            threading.Thread(target=post, args=(daemon, stream, range(first, first + FACTS)))
            for daemon, stream, first in (
                (alpha, "receipts", 10_000),
                (alpha, "caches", 20_000),
                (beta, "to_device", 30_000),
                (beta, "caches", 40_000),
            )
        ]
        for thread in posting:
            thread.start()
        for thread in posting:
            thread.join()

        for daemon in (alpha, beta, gamma):
            url = daemon.url
            eventually(lambda: len(kept(url)) >= 4 * FACTS, lambda: f"all facts\n{described(url)}")  # noqa: B023
        expected = Counter(kept(alpha.url))
        assert expected.total() == 4 * FACTS
        assert max(expected.values()) == 1
        assert Counter(kept(beta.url)) == expected
        assert Counter(kept(gamma.url)) == expected
        eventually(lambda: told_on(listener).total() >= expected.total(), "all facts on Redis")
        assert told_on(listener) == expected, "each once, as RDATA"
        positions = len(listener.payloads("POSITION"))
        assert positions <= 100, "positions are told when asked for, and of silence"
        for tail in tails:
            tail.wait_for_facts(4 * FACTS)
            wanted, had = (
                Counter((one.stream, one.token) for one in facts)
                for facts in (expected.elements(), tail.told)
            )
            assert (wanted - had, had - wanted) == (Counter(), Counter()), tail.dialect
            assert ascends(tail.told) == [], tail.dialect

        before = len(listener.heard)
        wait(IDLE_SECONDS)
        assert len(listener.heard) - before < 5, listener.heard[before:]
        report(
            f"bridge: {expected.total()} facts, {positions} positions, idle {len(listener.heard) - before}"
        )


def test_who_follows_over_tcp_is_heard_on_redis(tmp_path: Path, redis: RedisServer) -> None:
    """Each command once, on the channel that it has, with the names that old releases leave out."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        beta = stack.enter_context(on_redis(tmp_path, redis, "beta", writes="receipts"))
        newest = stack.enter_context(on_redis(tmp_path, redis, "newest", "--dialect", "1.163"))
        for daemon in (beta, newest):
            eventually(lambda: redis_of(daemon.url)["publishing"], "a daemon that speaks")  # noqa: B023
        legacy = stack.enter_context(
            RawReader(
                beta.follow, "NAME old", "REPLICATE events NOW", "USER_SYNC @ada:hs start 1490197670513"
            )
        )
        current = stack.enter_context(
            RawReader(
                beta.follow,
                *("NAME new", "PING 1", "REPLICATE ", "USER_SYNC xyzzy @bob:hs start 1490197670514"),
                'USER_IP @bob:hs ["token","127.0.0.1","curl",null,1490197670515]',
                "REMOTE_SERVER_UP example.org",
                "FEDERATION_ACK sender1 17",
                "CLEAR_USER_SYNC xyzzy",
            )
        )
        stack.enter_context(
            RawReader(
                newest.follow,
                *("NAME newest", "PING 1", "REPLICATE ", "USER_SYNC abcde @cat:hs PHONE start 1490197670516"),
                'LOCK_RELEASED ["new","purge","!r:hs"]',
            )
        )
        expected = Counter(
            {
                (SERVER, "USER_SYNC xyzzy @bob:hs None start 1490197670514"): 1,
                (f"{SERVER}/USER_IP", 'USER_IP @bob:hs ["token","127.0.0.1","curl",null,1490197670515]'): 1,
                (SERVER, "REMOTE_SERVER_UP example.org"): 1,
                (SERVER, "FEDERATION_ACK sender1 17"): 1,
                (SERVER, "CLEAR_USER_SYNC xyzzy"): 1,
                (SERVER, "USER_SYNC abcde @cat:hs PHONE start 1490197670516"): 1,
                (SERVER, 'LOCK_RELEASED ["new","purge","!r:hs"]'): 1,
            }
        )

        def said() -> Counter[tuple[str, str]]:
            quiet = {"REPLICATE", "POSITION"}
            return Counter(
                (one.channel, one.payload) for one in list(listener.heard) if one.command not in quiet
            )

        eventually(lambda: said().total() > expected.total(), lambda: f"commands: {expected - said()}")
        extra = said() - expected
        assert expected - said() == Counter()
        ((channel, old),) = extra
        words = old.split(" ")
        assert channel == SERVER
        assert words[:1] + words[2:] == ["USER_SYNC", "@ada:hs", "None", "start", "1490197670513"]
        life = words[1]
        assert life.isalpha(), "a name for the life of a connection"

        current.socket.close()
        legacy.socket.close()
        eventually(lambda: said()[SERVER, f"CLEAR_USER_SYNC {life}"], "CLEAR_USER_SYNC for who went")
        wait(1.0)
        assert said() == expected + extra + Counter({(SERVER, f"CLEAR_USER_SYNC {life}"): 1})
        assert not any("token" in line and "127.0.0.1" in line for line in beta.lines), "no secret in the log"


def test_a_server_that_is_up_is_told_to_each_follower_once(tmp_path: Path, redis: RedisServer) -> None:
    """Whoever said so; who said it is not told, and it is not said on Redis again."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        speaker = stack.enter_context(Speaker(redis))
        beta = stack.enter_context(on_redis(tmp_path, redis, "beta", writes="receipts"))
        other = stack.enter_context(on_redis(tmp_path, redis, "other"))
        wait_until_writing(beta)
        eventually(lambda: redis_of(other.url)["subscribed"], "a daemon that hears")
        readers = [
            stack.enter_context(RawReader(at.follow, f"NAME {name}", "PING 1", "REPLICATE "))
            for at, name in ((beta, "one"), (beta, "two"), (other, "three"))
        ]
        for reader in readers:
            reader.wait_for(b"POSITION receipts ")
        speaker.say("REMOTE_SERVER_UP from.redis")
        had: list[list[bytes]] = [reader.wait_for(b"REMOTE_SERVER_UP from.redis") for reader in readers]
        readers[0].socket.sendall(b"REMOTE_SERVER_UP from.tcp\n")
        for position in (1, 2):
            had[position] += readers[position].wait_for(b"REMOTE_SERVER_UP from.tcp")
        # What is told after it has passed whatever came of it.
        post(beta, "receipts", range(1, 2))
        for position, reader in enumerate(readers):
            had[position] += reader.wait_for(b"RDATA receipts beta 1 ")

        counted = [
            Counter(line.decode() for line in lines if line.startswith(b"REMOTE_SERVER_UP")) for lines in had
        ]
        both = {"REMOTE_SERVER_UP from.redis": 1, "REMOTE_SERVER_UP from.tcp": 1}
        assert counted == [{"REMOTE_SERVER_UP from.redis": 1}, both, both]
        assert Counter(listener.payloads("REMOTE_SERVER_UP")) == both


def test_a_second_process_of_the_same_name_tells_nothing(tmp_path: Path, redis: RedisServer) -> None:
    """Or others would drop facts of both; the first goes on, and the second says why."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        homes = (tmp_path / "a", tmp_path / "b")
        for home in homes:
            home.mkdir()
        first = stack.enter_context(on_redis(homes[0], redis, "same", writes="receipts"))
        wait_until_writing(first)
        post(first, "receipts", range(1, 50))
        second = stack.enter_context(on_redis(homes[1], redis, "same", writes="receipts"))

        def complaint() -> list[str]:
            return [one["what"] for one in status(second.url)["errors"] if "--instance-name" in one["what"]]

        (why,) = eventually(complaint, lambda: f"a complaint\n{described(second.url)}")
        assert "receipts" in why
        assert "same" in why
        assert not redis_of(second.url)["is_writing"]
        # A line that somebody has made up must not stop appends, and cannot be told from this one.
        post(second, "receipts", range(101, 150))
        post(first, "receipts", range(50, 60))

        first_facts = Counter(kept(first.url))
        eventually(lambda: told_on(listener).total() >= first_facts.total(), "all facts of the first")
        # Longer than it must have been quiet until the second tries again.
        wait(45.0 if LONG else 2.0)
        assert told_on(listener) == first_facts, "only the first's"
        assert status(first.url)["errors"] == []
        assert redis_of(first.url)["is_writing"]
        assert complaint(), "the other is there still, though it is quiet"


def test_what_it_does_not_write_it_refuses(tmp_path: Path, redis: RedisServer) -> None:
    """Its ids would be those of the real writer's facts."""
    with on_redis(tmp_path, redis, "alpha", writes="receipts,caches") as alpha:
        wait_until_writing(alpha)
        with Asker(alpha.url) as asker:
            with pytest.raises(Refused) as refused:
                asker.post("events", [rows_of("events", 1)])
            with pytest.raises(Refused) as of_another:
                asker.post("receipts", [rows_of("receipts", 1)], writer="beta")

            assert refused.value.status == 409
            assert b"redis_writes" in refused.value.body
            assert of_another.value.status == 409
            assert b"alpha" in of_another.value.body
            asker.post("receipts", [rows_of("receipts", 2)])
        assert [fact.stream for fact in kept(alpha.url)] == ["receipts"]


HOSTILE: Final[tuple[str | bytes, ...]] = (
    "",
    " ",
    "\0",
    "RDATA",
    "RDATA ",
    "RDATA receipts",
    "RDATA receipts w 5",
    "RDATA receipts w 5 ",
    "RDATA receipts w 5 {",
    "RDATA receipts w 5 [NaN]",
    "RDATA receipts w x []",
    "RDATA receipts w -5 []",
    'RDATA receipts w 6 ["too","few"]',
    'RDATA receipts w 7 ["!r:a","m.read","@u:a","$e:a",null,{},"too many"]',
    'RDATA receipts w 99999999999999999999999 ["!r:a","m.read","@u:a","$e:a",null,{}]',
    'RDATA receipts w 9223372036854775808 ["!r:a","m.read","@u:a","$e:a",null,{}]',
    'RDATA receipts w -9223372036854775808 ["!r:a","m.read","@u:a","$e:a",null,{}]',
    'RDATA receipts w 5 ["!r:\\u0000a","m.read","@u:a","$e:a",null,{}]',
    "RDATA nonsense w 5 [1]",
    "RDATA nonsense w batch [1]",
    "POSITION nonsense w 5 6",
    "POSITION nonsense w 5",
    "POSITION receipts w",
    "POSITION receipts w x y",
    "POSITION receipts w -1 -1",
    "POSITION receipts w 99999999999999999999999 99999999999999999999999",
    "POSITION receipts w\0 1 1",
    f"POSITION receipts {'w' * 5000} 1 1",
    "POSITION receipts   1 1",
    "position receipts w 1 1",
    " POSITION receipts w 1 1",
    "SERVER x",
    "PING 1",
    "ERROR go away",
    "NAME x",
    "NEW_ACTIVE_TASK x",
    "CANCEL_TASK x",
    "USER_SYNC a",
    "USER_SYNC a @u:a None neither 5",
    "CLEAR_USER_SYNC",
    "USER_IP @u:a {}",
    'LOCK_RELEASED ["only"]',
    "REMOTE_SERVER_UP",
    "FEDERATION_ACK x y",
    "WHAT IS THIS",
    "%s %d %(x)s {why} {0}",
    "RDATA receipts w 5 [1]\nRDATA receipts w 6 [2]",
    "RDATA receipts w 5 [1]\r",
    b"\xff\xfe\x00\x01",
    b'RDATA receipts w 5 ["\xff"]',
    "RDATA receipts w 8 " + "[" * 100_000,
    'RDATA receipts w 9223372036854775807 ["!r:a","m.read","@u:a","$e:a",null,{}]',
    "POSITION receipts w 9223372036854775807 9223372036854775807",
    "POSITION receipts w 18446744073709551615 18446744073709551615",
    'RDATA caches w 18446744073709551615 ["get_user_by_id",["@u:a"],1]',
    'RDATA caches w -18446744073709551615 ["get_user_by_id",["@u:a"],1]',
    'RDATA caches w -1 ["get_user_by_id",["@u:a"],1]',
    'RDATA caches w 0 ["get_user_by_id",["@u:a"],1]',
    'RDATA backfill w -7 ["$e","!r:a","m.room.message",null,null,null]',
    "POSITION typing w -5 -5",
    "POSITION typing w 0 99999999999999999999",
    'RDATA typing w -5 ["!r:a",[]]',
    'RDATA caches w 6 ["get_user_by_id",["\\u0000"],1]',
    'RDATA caches w 7 ["\\ud800",null,1]',
    'RDATA events w 5 ["ev",[]]',
    'RDATA events w 5 ["what",["x"]]',
    "RDATA caches w 5 [1,2,3]",
)


def test_nonsense_on_the_channel_harms_nothing(tmp_path: Path, redis: RedisServer) -> None:
    """Whatever is published: what makes sense is taken, what does not is counted, connections stay."""
    seed = drawn_seed()
    chance = random.Random(seed)
    with ExitStack() as stack:
        speaker = stack.enter_context(Speaker(redis))
        daemon = stack.enter_context(on_redis(tmp_path, redis, "observer"))
        tail = stack.enter_context(Tail(daemon, "current", cwd=tmp_path))
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        tail.wait_until_live()
        begun = redis_of(daemon.url)
        # Without these rows would not be looked at.
        for stream in ("receipts", "events", "caches", "backfill", "typing", "presence_federation"):
            speaker.say(f"POSITION {stream} w 1 1", f"POSITION {stream} evil 1 1")
        speaker.say(
            "POSITION to_device good 0 0", "POSITION to_device good 1 1", "POSITION receipts fine 1 1"
        )
        tail.wait_for_line("to_device")
        token = 1
        payloads = list(HOSTILE)
        good = 'RDATA to_device good 5 ["@u:a"]'
        for _ in range(size(300, 5_000)):
            mangled = bytearray(chance.choice([good.encode(), b"POSITION to_device good 3 4", b"REPLICATE "]))
            mangled = bytearray(mangled.replace(b"to_device", b"receipts").replace(b"good", b"evil"))
            for _ in range(chance.randint(1, 4)):
                mangled[chance.randrange(len(mangled))] = chance.randrange(256)
            payloads.append(bytes(mangled))
        for payload in payloads:
            token += 1
            speaker.say(payload, f'RDATA to_device good {token} ["@~{token}~:a"]')
        large = "x" * 1024 * 1024
        speaker.say(
            f'RDATA to_device good {token + 1} ["{large}"]', f'RDATA to_device good {token + 2} ["@last:a"]'
        )

        def good_ones() -> list[Fact]:
            return [fact for fact in kept(daemon.url) if fact.writer == "good"]

        eventually(
            lambda: len(good_ones()) >= token + 1,
            lambda: f"all facts (seed {seed}); {len(good_ones())} of {token + 1}",
        )
        assert [fact.token for fact in good_ones()] == list(range(2, token + 3)), f"seed {seed}"
        speaker.say('RDATA receipts fine 2 ["!r:a","m.read","@u:a","$e:a",null,{}]')
        eventually(
            lambda: any(fact.writer == "fine" for fact in kept(daemon.url)),
            lambda: f"a fact of a stream that others have abused (seed {seed})\n{described(daemon.url)}",
        )
        said = redis_of(daemon.url)
        assert said["reconnects"] == begun["reconnects"], f"a connection was dropped (seed {seed})"
        assert said["messages_refused"] >= 20
        logged = [line for line in daemon.lines if "Traceback" in line or "Unhandled" in line]
        assert logged == [], f"seed {seed}"
        noise = sum(len(line) for line in daemon.lines)
        assert noise < 200_000, "nonsense must not fill the disk with log"
        assert tail.trouble == []
        eventually(
            lambda: any("@last:a" in fact.rows for fact in tail.told),
            lambda: f"the last at a follower; {tail.others[-5:]}",
        )
        report(
            f"nonsense: {len(payloads)} messages, {said['messages_refused']} refused, {noise} bytes of log"
        )


def test_a_row_that_is_too_long_for_a_line_arrives(tmp_path: Path, redis: RedisServer) -> None:
    """Redis has no limit that matters; TCP has one, and there the fact is fetched."""
    with ExitStack() as stack:
        alpha = stack.enter_context(on_redis(tmp_path, redis, "alpha", writes="to_device"))
        (tmp_path / "beta.yaml").write_text(f"instance_map: {{alpha: '{alpha.url}'}}")
        beta = stack.enter_context(on_redis(tmp_path, redis, "beta", "--config", str(tmp_path / "beta.yaml")))
        tail = stack.enter_context(Tail(beta, "current", cwd=tmp_path))
        wait_until_writing(alpha)
        eventually(lambda: knows(beta.url, "to_device", "alpha"), "a daemon that hears the writer")
        tail.wait_until_live()
        with Asker(alpha.url) as asker:
            asker.post("to_device", [[["@short:a"]]])
            eventually(lambda: len(kept(beta.url)) == 1, "the first fact")
            asker.post("to_device", [[["@" + "x" * 20_000]], [["@" + "y" * 2_000_000]], [["@last:a"]]])

        eventually(lambda: kept(beta.url) == kept(alpha.url), lambda: described(beta.url))
        eventually(lambda: len(tail.told) >= 4, lambda: f"facts at a follower: {tail.others[-5:]}")
        assert redis_of(beta.url)["lost"] == []


def test_typing_begins_anew_with_its_writer(tmp_path: Path, redis: RedisServer) -> None:
    """Nobody stores who types: its tokens go back to 0 when the writer comes back, and count again."""
    with ExitStack() as stack:
        beta = stack.enter_context(on_redis(tmp_path, redis, "beta"))
        tails = [
            stack.enter_context(Tail(beta, dialect, "--from", "earliest", cwd=tmp_path))
            for dialect in ("current", "legacy")
        ]
        for tail in tails:
            tail.wait_for_line('"server"')
        with ExitStack() as life:
            alpha = life.enter_context(on_redis(tmp_path, redis, "alpha", writes="typing"))
            wait_until_writing(alpha)
            with Asker(alpha.url) as asker:
                for number in range(5):
                    asker.post("typing", [[["!r:a", [f"@{number}:a"]]]])
            for tail in tails:
                tail.wait_for_facts(5)
        with on_redis(tmp_path, redis, "alpha", writes="typing") as alpha:
            wait_until_writing(alpha)
            with Asker(alpha.url) as asker:
                for number in range(5, 8):
                    asker.post("typing", [[["!r:a", [f"@{number}:a"]]]])
            for tail in tails:
                tail.wait_for_facts(8)
                rows = [json.loads(fact.rows)[0][1] for fact in tail.told]
                assert rows == [[f"@{number}:a"] for number in range(8)], tail.dialect


def test_a_legacy_follower_gets_what_several_writers_tell_out_of_order(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Two writers of one stream are not in step; a release without writers has one position for both."""
    with ExitStack() as stack:
        speaker = stack.enter_context(Speaker(redis))
        daemon = stack.enter_context(on_redis(tmp_path, redis, "observer"))
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        tail = stack.enter_context(Tail(daemon, "legacy", "--from", "earliest", cwd=tmp_path))
        tail.wait_for_line('"server"')
        for stream in ("events", "caches"):
            speaker.say(*(f"POSITION {stream} {writer} 1 1" for writer in ("w1", "w2")))
            # What it missed is pushed in the order of tokens; from here on it is live.
            tail.wait_until(
                lambda: any('"position"' in line and stream in line for line in tail.others),  # noqa: B023
                f"a position of {stream}",
            )
        expected = set()
        for writer, token in (("w1", 2), ("w1", 4), ("w2", 3), ("w2", 5), ("w1", 7), ("w2", 6)):
            for stream in ("events", "caches"):
                (row, *_) = rows_of(stream, 1000 + token)
                speaker.say(f"RDATA {stream} {writer} {token} {json.dumps(row)}")
                expected.add((stream, token))
        eventually(lambda: len(kept(daemon.url)) == len(expected), "all facts in the log")

        eventually(
            lambda: {(fact.stream, fact.token) for fact in tail.told} >= expected,
            lambda: f"all facts; missing {expected - {(fact.stream, fact.token) for fact in tail.told}}",
        )


def test_a_legacy_follower_that_comes_back_gets_what_came_late(tmp_path: Path, redis: RedisServer) -> None:
    """What another writer told with a lower token while it was away must not be left out."""
    with ExitStack() as stack:
        speaker = stack.enter_context(Speaker(redis))
        daemon = stack.enter_context(on_redis(tmp_path, redis, "observer"))
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        state = ("--state", str(tmp_path / "state"))
        for stream in ("events", "caches"):
            speaker.say(*(f"POSITION {stream} {writer} 1 1" for writer in ("w1", "w2")))

        def say(writer: str, token: int) -> None:
            for stream in ("events", "caches"):
                (row, *_) = rows_of(stream, 1000 + token)
                speaker.say(f"RDATA {stream} {writer} {token} {json.dumps(row)}")

        had = set()
        with Tail(daemon, "legacy", "--from", "earliest", *state, cwd=tmp_path) as tail:
            tail.wait_for_line('"server"')
            say("w1", 2)
            say("w1", 9)
            tail.wait_for_facts(4)
            had |= {(fact.stream, fact.token) for fact in tail.told}
            tail.terminate()
        say("w2", 5)
        say("w2", 11)
        expected = {(stream, token) for stream in ("events", "caches") for token in (2, 9, 5, 11)}
        eventually(lambda: len(kept(daemon.url)) == len(expected), "all facts in the log")
        with Tail(daemon, "legacy", "--from", "earliest", *state, cwd=tmp_path) as tail:
            eventually(
                lambda: had | {(fact.stream, fact.token) for fact in tail.told} >= expected,
                lambda: f"all facts; missing {expected - had - {(f.stream, f.token) for f in tail.told}}",
            )


def test_a_legacy_worker_is_pushed_what_came_late(tmp_path: Path, redis: RedisServer) -> None:
    """It asks by one token for all writers, so that one of them may have told less than that when it left."""
    with ExitStack() as stack:
        speaker = stack.enter_context(Speaker(redis))
        daemon = stack.enter_context(on_redis(tmp_path, redis, "observer"))
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        expected = set()
        for stream in ("events", "caches"):
            speaker.say(*(f"POSITION {stream} {writer} 1 1" for writer in ("w1", "w2")))
            for writer, token in (("w1", 9), ("w2", 5), ("w2", 11)):
                (row, *_) = rows_of(stream, 1000 + token)
                speaker.say(f"RDATA {stream} {writer} {token} {json.dumps(row)}")
            expected |= {f"RDATA {stream} {token} " for token in (5, 11)}
        eventually(lambda: len(kept(daemon.url)) == 6, "all facts in the log")

        # It left when it had 9 of the first writer, and 5 had not come yet.
        reader = stack.enter_context(
            RawReader(daemon.follow, "NAME old", "REPLICATE events 9", "REPLICATE caches 9")
        )
        lines = [line.decode() for line in reader.wait_for(b"POSITION caches ")]
        missing = {start for start in expected if not any(line.startswith(start) for line in lines)}
        assert missing == set()


def test_what_was_said_while_deaf_is_not_taken_for_an_echo_later(tmp_path: Path, redis: RedisServer) -> None:
    """Our own words come back only while we hear; the same words of somebody else are news."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        speaker = stack.enter_context(Speaker(redis))
        beta = stack.enter_context(on_redis(tmp_path, redis, "beta", writes="receipts"))
        wait_until_writing(beta)
        reader = stack.enter_context(RawReader(beta.follow, "NAME one", "PING 1", "REPLICATE "))
        asker = stack.enter_context(RawReader(beta.follow, "NAME two", "PING 1", "REPLICATE "))
        reader.wait_for(b"POSITION receipts ")
        asker.wait_for(b"POSITION receipts ")
        (subscriber,) = [one["id"] for one in redis.clients() if one["name"] == "synrepl:beta:subscriber"]
        redis.kill_client(subscriber)
        asker.socket.sendall(b"REMOTE_SERVER_UP far.away\n")
        reader.wait_for(b"REMOTE_SERVER_UP far.away")
        eventually(lambda: listener.payloads("REMOTE_SERVER_UP"), "what the follower said, on Redis")
        eventually(lambda: redis_of(beta.url)["reconnects"] == 1, "a daemon that hears again")
        eventually(lambda: redis_of(beta.url)["subscribed"], "a daemon that hears again")

        speaker.say("REMOTE_SERVER_UP far.away")
        post(beta, "receipts", range(1, 2))
        had = reader.wait_for(b"RDATA receipts beta 1 ")
        assert [line for line in had if line.startswith(b"REMOTE")] == [b"REMOTE_SERVER_UP far.away"]


def test_an_invalidation_of_a_legacy_worker_reaches_everybody(tmp_path: Path, redis: RedisServer) -> None:
    """Up to 1.13 workers tell their master what to drop: here it becomes a fact of `caches` on Redis."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        beta = stack.enter_context(on_redis(tmp_path, redis, "beta", writes="caches"))
        wait_until_writing(beta)
        legacy = stack.enter_context(RawReader(beta.follow, "NAME old", "REPLICATE caches NOW"))
        legacy.socket.sendall(b'INVALIDATE_CACHE get_user_by_id ["@ada:hs"]\n')
        eventually(lambda: listener.payloads("RDATA"), "a fact on Redis")
        (told,) = told_on(listener)
        assert (told.stream, told.writer, told.token) == ("caches", "beta", 1)
        assert json.loads(told.rows)[0][:2] == ["get_user_by_id", ["@ada:hs"]]


def test_a_writer_that_is_stopped_in_order_has_told_what_it_acknowledged(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Or others would only hear of it when it comes back."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(redis))
        for life in range(size(4, 30)):
            with on_redis(tmp_path, redis, "alpha", writes="receipts") as alpha:
                wait_until_writing(alpha)
                post(alpha, "receipts", range(life * 100 + 1, life * 100 + 41))
                had = Counter(kept(alpha.url))
                with Asker(alpha.url) as asker:
                    asker.post(
                        "receipts", [rows_of("receipts", life * 100 + 50 + number) for number in range(40)]
                    )
                alpha.terminate()
            count = had.total() + 40
            eventually(
                lambda: told_on(listener).total() >= count,  # noqa: B023
                lambda: f"all {count} facts on Redis, got {told_on(listener).total()}",  # noqa: B023
            )
