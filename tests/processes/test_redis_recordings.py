"""Recordings of a real deployment, published through a real Redis into a daemon that listens."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.processes.channel import (
    BY_ALL,
    SECRET,
    Fact,
    Listener,
    Speaker,
    Tail,
    ascends,
    described,
    eventually,
    kept,
    metric,
    on_redis,
    redis_of,
    status,
)
from tests.processes.loading import drawn_seed, report, size
from tests.processes.recordings import SERVER, Message, Peers, RecordedState, recording, said_by
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon

COLD_START: Final = "cold_start"
TRAFFIC: Final = "traffic_seed1_special_federation"
KILLS: Final = size(3, 30)

NOT_YET: Final = frozenset(
    # Streams that came after 1.66.
    {
        "profile_updates",
        "quarantined_media",
        "sticky_events",
        "thread_subscriptions",
        "un_partial_stated_event",
        "un_partial_stated_room",
    }
)
UNKNOWN_TO: Final = {
    "legacy": NOT_YET | {"presence_federation"},
    "middle": NOT_YET | {"presence_federation"},
    "current": NOT_YET,
    "1.163": frozenset[str](),
}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with RedisServer() as server:
        yield server


def in_bursts(messages: Sequence[Message], chance: random.Random) -> Iterator[Sequence[Message]]:
    """All of these, some at a time."""
    trimmed_upto = 0
    while trimmed_upto < len(messages):
        end = trimmed_upto + chance.randint(1, 200)
        yield messages[trimmed_upto:end]
        trimmed_upto = end


def publish(speaker: Speaker, messages: Sequence[Message]) -> None:
    """All of these, in bursts, as they happen."""
    for burst in in_bursts(messages, random.Random(1)):
        speaker.publish((message.channel, message.payload) for message in burst)


def identity(facts: Sequence[Fact]) -> Counter[Fact]:
    """Facts without the writer where it says nothing: in streams that several tell alike."""
    return Counter(fact._replace(writer="") if fact.stream in BY_ALL else fact for fact in facts)


def difference(expected: Counter[Fact], had: Counter[Fact]) -> str:
    """What there is too little of, and too much; empty if there is neither."""
    said = ""
    for what, facts in (("missing", expected - had), ("too many", had - expected)):
        if facts:
            kinds = Counter((fact.stream, fact.writer) for fact in facts.elements())
            said += f"{what} {facts.total()}: {dict(kinds)}, as {sorted(facts)[:3]}; "
    return said


def wait_for_all(daemon: Daemon, told: RecordedState) -> None:
    """Until a daemon keeps what was told, and nothing else."""
    expected = identity(told.kept())

    def is_there() -> bool:
        return not expected - identity(kept(daemon.url))

    try:
        eventually(is_there, "all facts")
    except AssertionError:
        kinds = difference(expected, identity(kept(daemon.url)))
        raise AssertionError(f"{kinds}\n{described(daemon.url)}") from None
    had = kept(daemon.url)
    assert difference(expected, identity(had)) == ""
    assert ascends(had) == []


def test_a_recording_is_in_the_log_fact_by_fact(tmp_path: Path, redis: RedisServer) -> None:
    """Each fact of the server once and whole, and nothing of the other server on the same Redis."""
    messages = recording(COLD_START, TRAFFIC)
    with (
        on_redis(tmp_path, redis, "observer", server=SERVER) as daemon,
        Speaker(redis) as speaker,
        Listener(redis) as listener,
    ):
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        publish(speaker, messages)

        told = RecordedState(messages)
        wait_for_all(daemon, told)
        assert Counter(told.kept()) == Counter(kept(daemon.url)), "the first who told it is its writer"
        said = redis_of(daemon.url)
        assert (said["gaps"], said["lost"], said["messages_refused"]) == ([], [], 0)
        of_others = Counter((message.channel, message.payload) for message in messages)
        own = Counter((one.channel, one.payload) for one in listener.heard) - of_others
        assert set(own) <= {(SERVER, "REPLICATE ")}, "a daemon that only listens says nothing but REPLICATE"


def known_rows(facts: Sequence[Fact], dialect: str) -> Counter[tuple[str, int, tuple[str, ...]]]:
    """What a release is told of facts: by stream, token, and what each row begins with."""
    found: Counter[tuple[str, int, tuple[str, ...]]] = Counter()
    for fact in facts:
        rows = json.loads(fact.rows)
        if dialect != "1.163":
            rows = [row for row in rows if fact.stream != "events" or row[0] != "state-all"]
        if rows and fact.stream not in UNKNOWN_TO[dialect]:
            found[fact.stream, fact.token, tuple(_begins(fact.stream, row) for row in rows)] += 1
    return found


def _begins(stream: str, row: Any) -> str:
    return str(row[1][0] if stream == "events" else row[0])


def test_followers_of_every_release_get_a_recording(tmp_path: Path, redis: RedisServer) -> None:
    """Whatever their release knows, once, in the order of its writer, what nobody keeps included."""
    messages = recording(COLD_START, TRAFFIC)
    told = RecordedState(messages)
    with ExitStack() as stack:
        tails = []
        for dialect in UNKNOWN_TO:
            daemon = stack.enter_context(
                on_redis(tmp_path, redis, f"observer-{dialect}", "--dialect", dialect, server=SERVER)
            )
            tails.append(stack.enter_context(Tail(daemon, dialect, cwd=tmp_path)))
            eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")  # noqa: B023
            tails[-1].wait_until_live()
        publish(stack.enter_context(Speaker(redis)), messages)

        for tail in tails:
            expected = known_rows(told.facts, tail.dialect)
            tail.wait_for_facts(expected.total())
            had = known_rows(tail.told, tail.dialect)
            assert (expected - had, had - expected) == (Counter(), Counter()), tail.dialect
            assert ascends(tail.told) == [], tail.dialect
        newest = tails[-1]
        assert difference(identity(told.facts), identity(newest.told)) == "", "every field of every row"


def test_a_recording_through_kills_is_complete_at_rest(tmp_path: Path, redis: RedisServer) -> None:
    """Killed in the middle of a fact of several rows, or of a burst that goes down: the rest is fetched."""
    seed = drawn_seed()
    chance = random.Random(seed)
    messages = recording(COLD_START, TRAFFIC)
    places = _places_to_kill(messages, chance)
    config = tmp_path / "config.yaml"
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    told = RecordedState()
    writers = sorted({writer for _, writer in RecordedState(messages).positions})
    with (
        Peers(told, secret=SECRET, page_rows=1_000) as peers,
        Speaker(redis) as speaker,
        Listener(redis) as listener,
    ):
        config.write_text(
            yaml.safe_dump(
                {
                    "instance_map": dict.fromkeys(writers, peers.url),
                    "secret_file": str(tmp_path / "secret"),
                }
            )
        )

        def start() -> Daemon:
            begun = on_redis(tmp_path, redis, "observer", "--config", str(config), server=SERVER)
            try:
                eventually(lambda: redis_of(begun.url)["subscribed"], "a daemon that hears")
            except BaseException:
                begun.kill()
                raise
            return begun

        daemon = start()
        answered = 0
        repaired = 0.0
        try:
            # Who is killed before it ever kept where the streams stand begins from now: that is no gap.
            trimmed_upto = len(recording(COLD_START))
            speaker.publish((message.channel, message.payload) for message in messages[:trimmed_upto])
            for message in messages[:trimmed_upto]:
                told.add(message)
            eventually(lambda: _has_begun(daemon, told), "a log that knows where the streams stand")
            for end in [*places, len(messages)]:
                for burst in in_bursts(messages[trimmed_upto:end], chance):
                    asked = len(listener.payloads("REPLICATE", SERVER)) - _replicates(messages[:trimmed_upto])
                    if asked > answered and not told.in_batch and " backfill " not in burst[0].payload:
                        answered = asked
                        speaker.say(*said_by(told), channel=SERVER)
                    speaker.publish((message.channel, message.payload) for message in burst)
                    for message in burst:
                        told.add(message)
                    trimmed_upto += len(burst)
                if end == len(messages):
                    break
                repaired += metric(daemon.url, "synrepl_gaps_repaired_total")
                daemon.kill()
                away = messages[trimmed_upto : trimmed_upto + chance.randint(1, 300)]
                speaker.publish((message.channel, message.payload) for message in away)
                for message in away:
                    told.add(message)
                trimmed_upto += len(away)
                peers.failures_left = 1
                daemon = start()
            # As the processes do when something else asks them.
            speaker.say("REPLICATE ", *said_by(told), channel=SERVER)

            try:
                wait_for_all(daemon, told)
            except AssertionError as error:
                error.add_note(f"seed {seed}, killed at {places}, asked {peers.asked}")
                raise
            # A gap may hold no facts, and be tried again.
            eventually(lambda: not redis_of(daemon.url)["gaps"], f"no gaps left (seed {seed})")
            assert redis_of(daemon.url)["lost"] == [], f"seed {seed}"
            repaired += metric(daemon.url, "synrepl_gaps_repaired_total")
        finally:
            daemon.kill()
    report(f"recording: {len(places)} kills, {len(peers.asked)} requests, {repaired:g} gaps repaired")


def _has_begun(daemon: Daemon, told: RecordedState) -> bool:
    streams = status(daemon.url)["streams"]
    return all(
        streams[stream]["writers"].get(writer, 0) >= token
        for (stream, writer), token in told.positions.items()
    )


def _replicates(messages: Sequence[Message]) -> int:
    return sum(message.payload == "REPLICATE " and message.channel == SERVER for message in messages)


def _places_to_kill(messages: Sequence[Message], chance: random.Random) -> list[int]:
    """In the middle of a batch, in the middle of a burst of backfill, and anywhere."""
    told = RecordedState()
    in_batch, in_burst = [], []
    for position, message in enumerate(messages):
        told.add(message)
        if message.channel == SERVER and told.in_batch:
            in_batch.append(position + 1)
        if message.payload.startswith("RDATA backfill ") and message.channel == SERVER:
            in_burst.append(position + 1)
    chosen = {chance.choice(in_batch), chance.choice(in_burst)}
    while len(chosen) < KILLS:
        chosen.add(chance.randrange(500, len(messages) - 100))
    return sorted(chosen)


def test_a_gap_in_backfill_longer_than_a_page_is_fetched_whole(tmp_path: Path, redis: RedisServer) -> None:
    """Real writers answer with the highest facts, and name the lowest of them as where to go on."""
    told = RecordedState(recording(COLD_START, TRAFFIC))
    writer = "event_persister1"
    highest = told.positions["backfill", writer]
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    config = tmp_path / "config.yaml"
    with Peers(told, secret=SECRET) as peers, Speaker(redis, SERVER) as speaker:
        config.write_text(
            yaml.safe_dump({"instance_map": {writer: peers.url}, "secret_file": str(tmp_path / "secret")})
        )
        with on_redis(tmp_path, redis, "observer", "--config", str(config), server=SERVER) as daemon:
            eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
            speaker.say(f"POSITION backfill {writer} 1 1", f"POSITION backfill {writer} {highest} {highest}")
            eventually(lambda: metric(daemon.url, "synrepl_gaps_repaired_total"), "a repaired gap")

            expected = [fact for fact in told.facts if fact.stream == "backfill"]
            # What was fetched last is held until its burst is whole.
            eventually(
                lambda: difference(Counter(expected), Counter(kept(daemon.url))) == "",
                lambda: f"all of it ({peers.asked})",
            )
