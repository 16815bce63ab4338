"""Offsets, options, ranges and checks of the source, without Spark and without a daemon."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from synrepl.errors import ConfigError
from synrepl.http_api.routes import DECLARED, STATUS
from synrepl.pipeline.source.daemon_client import DataLoss, SourceError
from synrepl.pipeline.source.data_source import BatchPacer
from synrepl.pipeline.source.offsets import BadOffset, Offset, parse_offset_request
from synrepl.pipeline.source.options import read_options
from synrepl.pipeline.source.ranges import CompletenessCheck, Planner, SerialRange, read_range, split_range
from synrepl.pipeline.source.rows import COLUMNS, explode, split_items
from synrepl.pipeline.typed import layout_of
from synrepl.streams.digest import EMPTY
from synrepl.streams.facts import Fact
from synrepl.wire import jsontext
from tests.pipeline.archives import batch_of_facts, chained

URL = {"url": "http://127.0.0.1:9093"}
ROW = [["@ada:example.org"]]


class FakeDaemon:
    """Answers as a daemon does, from a list of facts, the first of which were trimmed."""

    def __init__(
        self, facts: Sequence[Fact], *, trimmed_upto: int = 0, page: int = 7, whole: range = range(0)
    ) -> None:
        self.facts_held = list(facts)
        self.trimmed_upto = trimmed_upto
        self.page = page
        self.whole = whole
        """The serials of an atomic append."""

    def extent(self, since: int = 0, limit: int | None = None, upto: int | None = None, **query: Any) -> Any:
        if since < self.trimmed_upto and not query.get("compacted"):
            raise DataLoss(f"trimmed up to serial {self.trimmed_upto}")
        head = len(self.facts_held)
        found = [
            fact
            for fact in self.facts_held
            if since < fact.serial <= min(head, upto or head)
            and fact.stream in query.get("streams", fact.stream)
        ]
        serial = min(head, upto or head)
        if limit is not None and len(found) > limit:
            if found[limit - 1].serial in self.whole:
                limit = sum(fact.serial <= self.whole[-1] for fact in found)
            found = found[:limit]
            serial = found[-1].serial
        clock: dict[str, dict[str, int]] = {}
        for fact in found:
            clock.setdefault(fact.stream, {})[fact.writer] = fact.token
        return {
            "serial": max(since, serial),
            "epoch": 1,
            "digest": self.digest(max(since, serial)),
            "history": "h",
            "facts": len(found),
            "bytes": sum(len(fact.rows) for fact in found),
            "clock": clock,
            "committed_at_ms": found[-1].committed_at_ms if found else 0,
            "trimmed_upto": self.trimmed_upto,
            "head": head,
        }

    def digest(self, serial: int) -> str | None:
        if serial > len(self.facts_held):
            return None
        return self.facts_held[serial - 1].digest if serial else EMPTY

    def digest_at(self, serial: int, *, epoch: int | None = None) -> str | None:
        if serial > (head := len(self.facts_held)):
            raise SourceError(f"its log ends at serial {head}, before serial {serial}")
        return self.digest(serial)

    def get(self, route: Any, serials: Any = ()) -> Any:
        if route is DECLARED:
            return {"streams": []}
        if route is STATUS:
            clock: dict[str, Any] = {}
            for fact in self.facts_held:
                clock.setdefault(fact.stream, {"writers": {}})["writers"][fact.writer] = fact.token
            return {"streams": clock}
        found = {str(serial): self.digest(serial) for serial in serials}
        return {"epoch": 1, "serial": len(self.facts_held), "history": "h", "digests": found}

    def facts(self, *, since: int, upto: int, **query: Any) -> Iterator[Any]:
        found = [
            fact
            for fact in self.facts_held
            if since < fact.serial <= upto
            and fact.stream in query.get("streams", fact.stream)
            and fact.writer in query.get("writers", fact.writer)
        ]
        for first in range(0, len(found), self.page):
            yield batch_of_facts(found[first : first + self.page])


def planning(daemon: Any, **options: str) -> Planner:
    """What plans a query with these options."""
    return Planner(read_options({**URL, **options}), daemon)


def serials(daemon: Any, ranges: Sequence[SerialRange], **options: str) -> list[int]:
    """The serials that tasks give which read these ranges."""
    said = read_options({**URL, **options})
    return [
        serial
        for one in ranges
        for batch in read_range(one, said, daemon)
        for serial in batch["serial"].to_pylist()
    ]


def test_a_filtered_range_proves_its_end() -> None:
    """Its last fact may be of another stream: the daemon is asked for the digest of the end."""
    options = {"streams": "push_rules"}
    facts = chained([("push_rules", "w1", ROW), ("receipts", "w1", ROW)] * 5)
    planner = planning(daemon := FakeDaemon(facts), **options)
    ranges = planner.ranges(*planner.closed_range())

    assert len(serials(daemon, ranges, **options)) == 10, "the fake selects nothing"
    with pytest.raises(SourceError, match="log ends at serial 8, before serial 10"):
        serials(FakeDaemon(facts[:8]), ranges, **options)
    fork = FakeDaemon([*facts[:8], *chained([("push_rules", "w2", ROW)] * 2, after=facts[:8])])
    with pytest.raises(DataLoss, match="the log was replaced since the range was planned"):
        serials(fork, ranges, **options)


class OlderDaemon(FakeDaemon):
    """A daemon of a release without streams of one's own, or one that refuses to list them."""

    code = "not_found"

    def get(self, route: Any, serials: Any = ()) -> Any:
        if route is DECLARED:
            error = SourceError(f"refuses the request: {self.code}")
            error.code = self.code
            raise error
        return super().get(route, serials)


def test_a_daemon_without_declared_streams_gives_keys_of_the_others() -> None:
    """It answers 404; another refusal is an error."""
    daemon = OlderDaemon(chained([("push_rules", "master", ROW)]))
    options = read_options({**URL, "columns": "key"})

    [rows] = read_range(SerialRange(0, 1), options, daemon)  # type: ignore[arg-type]  # a fake

    assert rows["key"].to_pylist() == ['["@ada:example.org"]']
    daemon.code = "unauthorized"
    with pytest.raises(SourceError, match="unauthorized"):
        list(read_range(SerialRange(0, 1), options, daemon))  # type: ignore[arg-type]


def test_streams_are_asked_of_a_daemon_that_has_their_declarations() -> None:
    """A replica that is behind would list none, and the rows would have no keys."""
    facts = chained([("push_rules", "w1", ROW)] * 3)
    asked: list[Any] = []

    class Daemon(FakeDaemon):
        def digest_at(self, serial: int, *, epoch: int | None = None) -> str | None:
            asked.append(serial)
            return super().digest_at(serial)

        def get(self, route: Any, serials: Any = ()) -> Any:
            asked.append(route)
            return super().get(route, serials)

    options = read_options({**URL, "columns": "key"})
    list(read_range(SerialRange(0, 3), options, Daemon(facts)))  # type: ignore[arg-type]

    assert [3, DECLARED] == asked


class TestOffsets:
    """Offsets outlive releases in checkpoints: their text is a contract."""

    def test_an_offset_is_plain_json(self) -> None:
        """And says the same when it is read again."""
        offset = Offset(serial=7, epoch=2, digest="5a", history="h", clock={"events": {"w": 3}})

        text = json.dumps(offset.to_json())

        assert {"version": 1, "epoch": 2, "serial": 7, "digest": "5a", "history": "h"} == {
            name: json.loads(text)[name] for name in ("version", "epoch", "serial", "digest", "history")
        }
        assert offset == Offset.from_json(json.loads(text))

    @pytest.mark.parametrize(
        "value",
        [
            None,
            {},
            {"version": 2, "serial": 1},
            {"version": 1},
            {"version": 1, "serial": True},
            {"version": 1, "serial": -1},
            {"version": 1, "serial": 1, "digest": 5},
            {"version": 1, "serial": 1, "clock": {"events": 5}},
            {"version": 1, "serial": 1, "clock": {"events": {"w": "1"}}},
        ],
    )
    def test_what_is_no_offset_is_refused_in_words(self, value: Any) -> None:
        """A checkpoint of something else, or of a later release."""
        with pytest.raises(BadOffset):
            Offset.from_json(value)

    def test_no_token_ever_goes_back(self) -> None:
        """Facts of some streams come late, with lower tokens."""
        found = {"serial": 9, "epoch": 1, "digest": "d", "history": "h", "committed_at_ms": 5}
        start = Offset(serial=7, clock={"caches": {"w": 30}}, skip={"caches": {"w": 8}, "events": {"w": 9}})

        end = start.advance({**found, "clock": {"caches": {"w": 20, "v": 4}}})

        assert {"caches": {"w": 30, "v": 4}} == end.clock
        assert {} == end.skip

    @pytest.mark.parametrize("text", ["never", "[]", '{"events": 5}', '{"events": {"w": -3}}', "-1", "1.5"])
    def test_a_wish_that_makes_no_sense(self, text: str) -> None:
        """The name of the option is told, and what can be said."""
        with pytest.raises(BadOffset):
            parse_offset_request("startingOffsets", text)


class TestOptions:
    """Kafka's names, whatever the case."""

    def test_options_are_read_whatever_their_case(self) -> None:
        """Spark gives them in lower case."""
        options = read_options(
            {
                **URL,
                "MAXOFFSETSPERTRIGGER": "5",
                "failondataloss": "False",
                "columns": "serial, row",
                "path": "x",
            }
        )

        assert (5, False, ("serial", "row")) == (
            options.max_offsets_per_trigger,
            options.fail_on_data_loss,
            options.columns,
        )
        assert COLUMNS == read_options(URL).columns

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({}, "needs the option url"),
            ({**URL, "columns": "serial,rows"}, "no column 'rows'"),
            ({**URL, "columns": "row,row"}, "named twice"),
            (
                {**URL, "maxOffsetsPerTrigger": "0"},
                "maxOffsetsPerTrigger must be a whole number of at least 1",
            ),
            ({**URL, "failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
            ({**URL, "startingOffsets": "soon"}, "startingOffsets must be earliest, latest"),
            ({**URL, "startingTimestamp": "yesterday"}, "startingTimestamp must be a whole number"),
            ({**URL, "maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a whole number of at least 1"),
            ({"url": " , "}, "needs the option url"),
            ({**URL, "maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration such as 15m"),
        ],
    )
    def test_invalid_options_are_refused(self, given: dict[str, str], words: str) -> None:
        """In one line, with the name of the option."""
        with pytest.raises(ConfigError, match=words):
            read_options(given)

    def test_a_reader_of_one_stream_has_its_columns(self) -> None:
        """After those of all streams; a filter on other streams would leave nothing."""
        options = read_options(
            {**URL, "stream": "push_rules"}, lambda options: layout_of(str(options.stream))
        )

        assert (*COLUMNS, "user_id") == options.columns
        assert frozenset({"push_rules"}) == options.streams
        with pytest.raises(ConfigError, match="stream and streams exclude each other"):
            read_options({**URL, "stream": "push_rules", "streams": "events"}, lambda _: layout_of("events"))

    def test_a_sink_has_no_columns_of_a_stream(self) -> None:
        """There the option names the stream of rows that do not."""
        assert COLUMNS == read_options({**URL, "stream": "push_rules"}).columns


@pytest.mark.parametrize(
    ("after", "upto", "least", "each", "expected"),
    [
        (0, 0, 1, 10, [0]),
        (5, 5, 4, 10, [5]),
        (0, 10, 1, 10, [0, 10]),
        (0, 10, 2, 10, [0, 5, 10]),
        (0, 11, 1, 5, [0, 3, 7, 11]),
        (7, 9, 8, 10, [7, 8, 9]),
        (0, 100, 1, 50, [0, 50, 100]),
    ],
)
def test_a_range_is_cut_into_equal_parts(
    after: int, upto: int, least: int, each: int, expected: list[int]
) -> None:
    """Equal parts, none of them empty."""
    assert expected == split_range(after, upto, at_least=least, at_most_each=each)


class TestPlans:
    """What is read: everything that is wanted, once."""

    facts = chained([("push_rules", "w1", ROW), ("pushers", "w2", [["@a:b", "x", "y", False]])] * 20)

    def test_a_closed_range_is_read_once_by_any_number_of_tasks(self) -> None:
        """Cores share the reading, and nothing is read twice or by nobody."""
        daemon = FakeDaemon(self.facts)
        for parts in ("1", "3", "40", "99"):
            plan = planning(daemon, minPartitions=parts)

            ranges = plan.ranges(*plan.closed_range())

            assert min(int(parts), 40) == len(ranges)
            assert list(range(1, 41)) == serials(daemon, ranges)

    def test_a_range_is_of_the_epoch_in_which_the_log_has_its_end(self) -> None:
        """A replica in that epoch is only behind, though the offset is of the epoch before."""

        class Promoted(FakeDaemon):
            def get(self, route: Any, serials: Any = ()) -> Any:
                return super().get(route, serials) | {"epoch": 2}

        daemon = Promoted(self.facts)
        for serial, digest, epoch in (
            (30, None, 2),
            (30, daemon.digest(30), 2),
            (30, EMPTY, 1),
            (41, None, 1),
        ):
            end = Offset(serial, digest=digest)

            assert {epoch} == {one.epoch for one in planning(daemon).ranges(Offset(0), end, {})}

    def test_micro_batches_are_of_whole_facts_up_to_the_limit(self) -> None:
        """Each goes on where the last one ended; at the head there is nothing."""
        daemon = FakeDaemon(self.facts)
        plan = planning(daemon)
        at, ends = plan.start(), []
        while (end := plan.end(at, limit=15)) != at:
            ends.append(end.serial)
            at = Offset.from_json(end.to_json())

        assert [15, 30, 40] == ends
        assert {"push_rules": {"w1": 20}, "pushers": {"w2": 20}} == at.clock
        assert self.facts[-1].digest == at.digest

    def test_micro_batches_are_of_about_so_many_bytes(self) -> None:
        """As many facts as fit, and one at least, however large it is."""
        daemon = FakeDaemon(self.facts)
        sizes = {fact.serial: len(fact.rows) for fact in self.facts}
        for most, limit in ((200, None), (200, 3), (1, None), (10_000, None)):
            plan = planning(daemon, maxBytesPerTrigger=str(most))
            at, before = plan.start(), 0
            while (end := plan.end(at, limit=limit)) != at:
                taken = [sizes[serial] for serial in range(before + 1, end.serial + 1)]
                assert sum(taken) <= most or len(taken) == 1
                assert len(taken) == limit or end.serial == 40 or sum(taken) > most / 3
                at, before = end, end.serial
            assert 40 == before

    def test_an_atomic_append_of_more_bytes_is_one_micro_batch(self) -> None:
        """The daemon measures it whole, whatever the limit."""
        daemon = FakeDaemon(self.facts, whole=range(5, 31))
        plan = planning(daemon, maxBytesPerTrigger="100")
        at, ends = plan.start(), []
        while (end := plan.end(at, limit=None)) != at:
            ends.append(end.serial)
            at = end

        assert {30, 40} <= set(ends)
        assert not set(ends) & set(range(5, 30))

    def test_a_moment_says_where_to_begin_and_end(self) -> None:
        """The first fact that was committed then, or later; from the future on, only what comes."""
        daemon = FakeDaemon(self.facts)
        moments = [fact.committed_at_ms for fact in self.facts]
        for first, last, expected in (
            (moments[9], moments[19], range(10, 20)),
            (moments[9] - 1, moments[19] + 1, range(10, 21)),
            (0, moments[-1] + 1, range(1, 41)),
            (moments[-1] + 1, moments[-1] + 2, range(0)),
            (moments[20], moments[10], range(0)),
        ):
            plan = planning(daemon, startingTimestamp=str(first), endingTimestamp=str(last))

            assert list(expected) == serials(daemon, plan.ranges(*plan.closed_range()))
        assert 40 == planning(daemon, startingTimestamp=str(moments[-1] + 1)).start().serial

    def test_a_moment_in_a_trimmed_log(self) -> None:
        """What was trimmed was before it."""
        daemon = FakeDaemon(self.facts, trimmed_upto=10)
        for position, begins in ((0, 10), (30, 30)):
            moment = str(self.facts[position].committed_at_ms)

            assert begins == planning(daemon, startingTimestamp=moment).start().serial

    def test_tokens_say_where_to_begin_and_end(self) -> None:
        """As in Kafka's source; writers that are not named are read from the beginning, and to the end."""
        daemon = FakeDaemon(self.facts)
        starting, ending = '{"push_rules": {"w1": 18}}', '{"pushers": {"w2": 2}, "push_rules": {"w1": -1}}'

        plan = planning(daemon, startingOffsets=starting, endingOffsets=ending)
        found = serials(daemon, plan.ranges(*plan.closed_range()))

        assert [2, 4, 37, 39] == found

    def test_where_all_tokens_are_named_nothing_is_read_in_vain(self) -> None:
        """The plan begins at the first serial that is wanted."""
        plan = planning(
            FakeDaemon(self.facts), startingOffsets='{"push_rules": {"w1": 18}, "pushers": {"w2": 17}}'
        )

        start = plan.start()

        assert (35, {"push_rules": {"w1": 36}, "pushers": {"w2": 35}}) == (start.serial, start.skip)

    def test_the_latest_offset_is_the_head_with_everybodys_position(self) -> None:
        """Whoever begins there is given what comes later."""
        start = planning(FakeDaemon(self.facts), startingOffsets="latest").start()

        assert (40, {"push_rules": {"w1": 20}, "pushers": {"w2": 20}}) == (start.serial, start.clock)

    @pytest.mark.parametrize("token", [10, 14])
    @pytest.mark.parametrize("trimmed_upto", [30, 40])
    def test_tokens_of_trimmed_facts_are_a_loss(
        self, trimmed_upto: int, token: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They were asked for; as they are if the query begins with a serial. Those read before are none."""
        daemon = FakeDaemon(self.facts, trimmed_upto=trimmed_upto)
        at = json.dumps({"push_rules": {"w1": token}})

        with pytest.raises(
            DataLoss, match=f"facts of writer w1 in stream push_rules after token {token} were"
        ):
            planning(daemon, startingOffsets=at).start()
        assert trimmed_upto == planning(daemon, startingOffsets=at, failOnDataLoss="false").start().serial
        assert f"after token {token} were trimmed" in caplog.text

    def test_tokens_at_the_end_of_the_trimmed_part_are_no_loss(self) -> None:
        """All after them is there. So it is for a writer that is quiet since."""
        daemon = FakeDaemon(self.facts, trimmed_upto=30)
        for token in (15, 16):
            start = planning(daemon, startingOffsets=json.dumps({"push_rules": {"w1": token}})).start()
            assert 30 == start.serial
        daemon.trimmed_upto = 40
        assert 40 == planning(daemon, startingOffsets='{"push_rules": {"w1": 20}}').start().serial

    @pytest.mark.parametrize("after", range(1, 5))
    def test_a_fact_that_arrives_while_a_plan_is_made_is_no_loss(self, after: int) -> None:
        """Nor is that of a writer which was quiet since the trimmed part, after any number of answers."""
        facts = [*self.facts, *chained([("push_rules", "w1", ROW)], after=self.facts)]

        class Busy(FakeDaemon):
            answers = 0

            def extent(self, *args: Any, **query: Any) -> Any:
                return self._answer(super().extent(*args, **query))

            def get(self, route: Any, serials: Any = ()) -> Any:
                return self._answer(super().get(route, serials))

            def _answer(self, found: Any) -> Any:
                self.answers += 1
                if self.answers == after:
                    self.facts_held = facts
                return found

        at = json.dumps({"push_rules": {"w1": 20}})
        assert planning(Busy(self.facts, trimmed_upto=40), startingOffsets=at).start().serial == 40

    def test_the_earliest_token_of_all_writers_is_where_a_trimmed_log_begins(self) -> None:
        """As `earliest` is."""
        daemon = FakeDaemon(self.facts, trimmed_upto=30)
        plan = planning(daemon, startingOffsets='{"push_rules": {"w1": -2}, "pushers": {"w2": -2}}')

        assert list(range(31, 41)) == serials(daemon, plan.ranges(*plan.closed_range()))

    @pytest.mark.parametrize("limit", [{"limit": 5}, {"limit": None}])
    def test_the_trimmed_part_is_one_micro_batch(self, limit: dict[str, int | None]) -> None:
        """Within it no query could go on: nothing would tell a trimmed fact from a lost one."""
        daemon = FakeDaemon(self.facts, trimmed_upto=30)
        options = {"compacted": "true"} | ({} if limit["limit"] else {"maxBytesPerTrigger": "100"})
        plan = planning(daemon, **options)
        at, ends = plan.start(), []
        while (end := plan.end(at, **limit)) != at:
            ends.append(end.serial)
            at = end

        assert (30, 40) == (ends[0], ends[-1])
        assert len(ends) > 2

    def test_an_end_that_the_log_does_not_have_is_an_error(self) -> None:
        """A replica that is behind would be taken for complete."""
        with pytest.raises(SourceError, match="the log ends at serial 40, before serial 41"):
            planning(FakeDaemon(self.facts), endingOffsets="41").closed_range()
        assert 40 == planning(FakeDaemon(self.facts), endingOffsets="40").closed_range()[1].serial

    def test_a_trimmed_log_begins_where_it_begins(self) -> None:
        """What was trimmed before a query first ran is no loss; to a query that was further back it is."""
        daemon = FakeDaemon(self.facts, trimmed_upto=30)

        assert 30 == planning(daemon).start().serial
        with pytest.raises(DataLoss, match="trimmed up to serial 30"):
            planning(daemon).end(Offset(serial=10), limit=None)
        plan = planning(daemon, failOnDataLoss="false")
        end = plan.end(Offset(serial=10), limit=None)
        assert 40 == end.serial
        assert plan.ranges(Offset(serial=20), end, {})[0].compacted
        assert not plan.ranges(Offset(serial=30), end, {})[0].compacted


class TestPacing:
    """How long a micro-batch waits for enough facts."""

    def test_a_batch_waits_for_enough_or_for_long_enough(self) -> None:
        """The first does not: nobody knows how long its facts have waited."""
        now = [100.0]
        options = read_options({**URL, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "2m"})
        pacing = BatchPacer(options, seconds=lambda: now[0])
        told = []
        for later, waiting in ((0, 1), (1, 1), (1, 4), (1, 5), (1, 4), (119, 4), (1, 4), (1, 0), (500, 0)):
            now[0] += later
            told.append(pacing.is_due(waiting))

        assert [True, False, False, True, False, True, False, False, False] == told

    def test_without_a_minimum_nothing_waits(self) -> None:
        pacing = BatchPacer(read_options(URL), seconds=lambda: 0.0)

        assert [True, True] == [pacing.is_due(1), pacing.is_due(1)]


class TestChecking:
    """A gap in numbers is told from a loss of facts."""

    facts = chained([("push_rules", "w1", ROW), ("push_rules", "w2", ROW)] * 10)

    @staticmethod
    def look(planned: SerialRange, facts: Sequence[Fact], *, is_all: bool) -> None:
        checking = CompletenessCheck(planned, is_all=is_all)
        for first in range(0, len(facts), 6):
            checking.check(batch_of_facts(facts[first : first + 6]))
        checking.finish()

    def test_complete_ranges_pass_the_check(self) -> None:
        """From any place on, chosen or not; tokens of several writers skip numbers, which is no loss."""
        whole = SerialRange(0, 20, digest=EMPTY, end_digest=self.facts[-1].digest)
        self.look(whole, self.facts, is_all=True)
        self.look(SerialRange(5, 20), self.facts[5:], is_all=True)
        self.look(SerialRange(0, 20), self.facts[::2], is_all=False)

    @pytest.mark.parametrize("gone", [0, 3, 6, 19])
    def test_a_missing_serial_is_named(self, gone: int) -> None:
        """Wherever it is, at the seams of batches too."""
        left = self.facts[:gone] + self.facts[gone + 1 :]

        with pytest.raises(DataLoss, match=rf"serials? {gone + 1}\b"):
            self.look(SerialRange(0, 20), left, is_all=True)

    @pytest.mark.parametrize("gone", [1, 2, 3, 8])
    def test_a_missing_fact_among_those_chosen_is_named(self, gone: int) -> None:
        """By the stream, the writer and the tokens between which it is missing."""
        chosen = self.facts[::2]
        before, missing = chosen[gone - 1].token, chosen[gone].token

        with pytest.raises(
            DataLoss, match=f"w1 in stream push_rules: after token {before}, up to token {missing}"
        ):
            self.look(SerialRange(0, 20), chosen[:gone] + chosen[gone + 1 :], is_all=False)

    def test_a_log_that_was_replaced_meanwhile_is_noticed(self) -> None:
        """Its serials are right, and its digests are not those that were planned."""
        with pytest.raises(DataLoss, match="was replaced since the range was planned"):
            self.look(SerialRange(0, 20, end_digest="f" * 64), self.facts, is_all=True)


def test_rows_are_split_as_the_log_splits_them() -> None:
    """Byte by byte, whatever is in them."""
    rows: list[Any] = [["a],[b", {"x": [1, [2.50, "\u00e4\u2028"]]}], [[], [[]]], ["]"], [None, True, -0.0]]
    for count in range(len(rows) + 1):
        text = jsontext.join(map(jsontext.dumps, rows[:count]))

        assert [part.decode() for part in jsontext.split(text)] == split_items(text.decode())


def test_a_fact_without_rows_has_a_line_without_a_row() -> None:
    """Also where no fact of the batch has several: an empty text would be taken for a row."""
    facts = chained([("push_rules", "w", []), ("push_rules", "w", [["@a:b"]])])

    assert [None, '["@a:b"]'] == explode(batch_of_facts(facts))["row"].to_pylist()


def test_a_typed_range_has_the_columns_of_its_stream() -> None:
    """Only those that are chosen; a fact without rows has nulls."""
    facts = chained([("receipts", "w", []), ("receipts", "w", [["!r", "m.read", "@a", "$e", None, {}]])])
    for columns in ("serial,user_id,data", "user_id", "serial"):
        given = {**URL, "stream": "receipts", "columns": columns}
        options = read_options(given, lambda _: layout_of("receipts"))

        (batch,) = read_range(SerialRange(0, 2), options, FakeDaemon(facts))  # type: ignore[arg-type]

        expected: list[dict[str, Any]] = [
            {"serial": 1, "user_id": None, "data": None},
            {"serial": 2, "user_id": "@a", "data": "{}"},
        ]
        names = columns.split(",")
        assert [{name: line[name] for name in names} for line in expected] == batch.to_pylist()


def test_an_empty_batch_has_no_rows() -> None:
    """Spark asks for parts with nothing in them."""
    assert 0 == len(explode(batch_of_facts([])))
    assert isinstance(explode(batch_of_facts(chained([("x", "w", [])]))), pa.RecordBatch)
