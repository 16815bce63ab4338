"""The client of the source: which failures it retries, and how it shares reads among daemons of one log."""

import errno
import http.client
from collections.abc import Callable
from email.message import Message
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest

from synrepl.errors import ConfigError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_client import BlockingClient, ConnectError
from synrepl.pipeline.source.daemon_client import DataLoss, SourceClient, SourceError, Superseded
from synrepl.pipeline.source.options import SourceOptions, read_options
from synrepl.pipeline.source.ranges import SerialRange, read_range
from synrepl.streams.facts import Fact
from tests.pipeline.archives import batch_of_facts, chained

ROW = [["@ada:example.org"]]
FACTS = chained([("push_rules", "w1", ROW)] * 6)


class Response(BytesIO):
    """A response whose body is read by Arrow."""

    def __init__(self, body: bytes, kind: str = "application/vnd.apache.arrow.stream") -> None:
        super().__init__(body)
        self.headers = Message()
        self.headers["Content-Type"] = kind


def body(*batches: list[Fact]) -> bytes:
    """The body of a response with these facts."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch_of_facts(FACTS).schema) as writer:
        for facts in batches:
            writer.write_batch(batch_of_facts(facts))
    found: bytes = sink.getvalue().to_pybytes()
    return found


class Daemons:
    """Daemons by name, with their answers in order; the last one is repeated, an exception is raised."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = {f"http://{name}": [*of] for name, of in answers.items()}
        self.asked: list[str] = []
        self.pauses = 0

    def answer(self, client: BlockingClient) -> Any:
        """The next answer of this daemon."""
        self.asked.append(client.url.removeprefix("http://"))
        left = self._answers[client.url]
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    def pause(self, seconds: float) -> None:
        """Let a second pass."""
        self.pauses += 1

    def client(self, *, first: int = 0) -> SourceClient:
        """A client of all these daemons."""
        options = self.options()
        return SourceClient(options, first=first, pause=self.pause, seconds=lambda: float(self.pauses))

    def options(self, **given: str) -> SourceOptions:
        """The options of a query at all these daemons."""
        return read_options({"url": ",".join(self._answers), "retrySeconds": "2", **given})


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Daemons]:
    """Makes the daemons of a test."""

    def make(**answers: list[Any]) -> Daemons:
        daemons = Daemons(**answers)

        def stream(client: BlockingClient, *_: Any, **__: Any) -> Response:
            found = daemons.answer(client)
            return found if isinstance(found, Response) else Response(found)

        monkeypatch.setattr(BlockingClient, "json", lambda client, *_, **__: daemons.answer(client))
        monkeypatch.setattr(BlockingClient, "stream", stream)
        return daemons

    return make


def serials(client: SourceClient, **query: Any) -> list[int]:
    """The serials of all facts."""
    batches = client.facts(since=0, upto=6, **query)
    return [serial for batch in batches for serial in batch["serial"].to_pylist()]


@pytest.mark.parametrize("read", [SourceClient.extent, serials])
def test_a_permanent_failure_is_not_retried(given: Any, read: Any) -> None:
    """A wrong port, scheme or certificate."""
    daemons = given(a=[ConnectError("it does not speak TLS", retryable=False)])

    with pytest.raises(SourceError, match="no usable response from http://a: it does not speak TLS"):
        read(daemons.client())

    assert daemons.pauses == 0


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), OSError(errno.ENOSPC, "disk full")])
def test_a_fault_of_this_machine_is_not_retried(given: Any, error: OSError) -> None:
    """It is no failure of the daemon."""
    daemons = given(a=[error])

    with pytest.raises(SourceError):
        serials(daemons.client())

    assert daemons.pauses == 0


def test_a_server_that_sends_no_arrow_is_no_daemon(given: Any) -> None:
    """It would send the same next time."""
    daemons = given(a=[Response(b"<html>", "text/html")])

    with pytest.raises(SourceError, match="is it a synrepl daemon"):
        serials(daemons.client())

    assert daemons.pauses == 0


@pytest.mark.parametrize(
    "broken",
    [
        body(FACTS[:2], FACTS[2:4])[:-300],
        body(FACTS[:2])[:-8],  # between two messages, as a proxy may end it when the daemon dies
        body(FACTS[:2])[:-4],
        ConnectionResetError(errno.ECONNRESET, "reset"),
        OSError(errno.EHOSTUNREACH, "no route"),
        TimeoutError("timed out"),
        http.client.IncompleteRead(b""),
        ConnectError("connection refused"),
        HttpError(503, "not_ready", "starting"),
    ],
)
def test_a_response_that_breaks_off_is_continued(given: Any, broken: Any) -> None:
    """After the last fact that arrived."""
    rest = FACTS[2:] if isinstance(broken, bytes) else FACTS
    daemons = given(a=[broken, body(rest)])

    assert serials(daemons.client()) == [1, 2, 3, 4, 5, 6]
    assert daemons.pauses == 1


def test_a_response_that_always_ends_early_is_an_error(given: Any) -> None:
    """Rows of streams that were selected would be missing, which nothing else shows."""
    daemons = given(a=[body()[:-8]])

    with pytest.raises(SourceError, match="ended before its end marker"):
        serials(daemons.client())

    assert daemons.pauses == 2


def test_a_daemon_that_stays_away_is_an_error(given: Any) -> None:
    """After the time of the option."""
    daemons = given(a=[ConnectError("connection refused")])

    with pytest.raises(SourceError, match="no usable response from http://a: connection refused"):
        serials(daemons.client())

    assert daemons.pauses == 2


HEAD = {"head": 6}


def test_tasks_begin_with_different_daemons(given: Any) -> None:
    """So that replicas share the ranges of a query."""
    daemons = given(a=[HEAD, body(FACTS)], b=[HEAD, body(FACTS)], c=[HEAD, body(FACTS)])

    for first in range(3):
        assert serials(daemons.client(first=first)) == [1, 2, 3, 4, 5, 6]

    assert daemons.asked == ["a", "a", "b", "b", "c", "c"]


def test_another_daemon_continues_a_range(given: Any) -> None:
    """Without a pause, after the last fact that arrived."""
    daemons = given(a=[HEAD, body(FACTS[:3], FACTS[3:])[:-300]], b=[HEAD, body(FACTS[3:])])

    assert serials(daemons.client()) == [1, 2, 3, 4, 5, 6]
    assert (daemons.asked, daemons.pauses) == (["a", "a", "b", "b"], 0)


def test_a_replica_behind_the_range_is_not_asked_for_it(given: Any) -> None:
    """Facts would be missing; it is asked again when no other daemon responds."""
    away = ConnectError("connection refused")
    daemons = given(a=[{"head": 5}, HEAD, body(FACTS)], b=[away])

    assert serials(daemons.client()) == [1, 2, 3, 4, 5, 6]
    assert (daemons.asked, daemons.pauses) == (["a", "b", "a", "a"], 1)


@pytest.mark.parametrize(("epoch", "is_lost"), [("3", True), ("2", False)])
def test_one_address_may_stand_for_a_daemon_that_is_behind(given: Any, epoch: str, is_lost: bool) -> None:
    """As that of a load balancer: the answer itself says how far its log was."""
    behind = Response(body(FACTS[:5]))
    behind.headers["Synrepl-Serial"], behind.headers["Synrepl-Epoch"] = "5", epoch
    whole = Response(body(FACTS))
    whole.headers["Synrepl-Serial"] = "6"
    daemons = given(a=[behind, whole])

    if is_lost:
        with pytest.raises(
            Superseded, match="http://a: its log ends at serial 5, before serial 6 of epoch 2"
        ):
            serials(daemons.client(), epoch=2)
    else:
        assert serials(daemons.client(), epoch=2) == [1, 2, 3, 4, 5, 6]
    assert daemons.pauses == (0 if is_lost else 1)


END = {"digests": {"6": FACTS[-1].digest}, "serial": 6, "epoch": 2}
BEFORE_END = {"digests": {"6": None}, "serial": 5, "epoch": 2}


def test_keys_of_facts_that_a_promotion_lost_are_not_awaited(given: Any) -> None:
    """The streams are asked first: they cannot be waited for either."""
    daemons = given(a=[BEFORE_END])
    planned = SerialRange(0, 6, epoch=1)

    with pytest.raises(Superseded, match=r"before serial 6 of epoch 1.* Begin the query anew"):
        list(read_range(planned, daemons.options(columns="serial,key"), daemons.client()))

    assert (daemons.asked, daemons.pauses) == (["a"], 0)


def test_the_end_of_a_filtered_range_is_asked_of_a_daemon_that_has_it(given: Any) -> None:
    """One address may stand for several: the rows came from another one."""
    daemons = given(a=[body(FACTS), BEFORE_END, END])
    planned = SerialRange(0, 6, epoch=2, end_digest=FACTS[-1].digest)
    options = daemons.options(streams="push_rules", columns="serial")

    rows = [row for batch in read_range(planned, options, daemons.client()) for row in batch.to_pylist()]

    assert (len(rows), daemons.pauses) == (6, 1)


def test_when_all_refuse_the_first_says_why(given: Any) -> None:
    """A trimmed replica costs nothing while the primary has the facts."""
    trimmed = HttpError(410, "trimmed", "facts up to serial 3 were trimmed")
    daemons = given(a=[trimmed], b=[HttpError(409, "other_history", "another log")])

    with pytest.raises(DataLoss, match="http://a: facts up to serial 3"):
        daemons.client().extent()

    daemons = given(a=[trimmed], b=[HEAD])
    assert daemons.client().extent() == HEAD
    assert daemons.pauses == 0


def test_a_refusal_that_lasts_is_told_before_a_daemon_that_is_away(given: Any) -> None:
    """After a promotion the old primary is away, and the new one lacks facts that the query has."""
    away, fork = ConnectError("connection refused"), HttpError(409, "fork", "the histories differ")
    daemons = given(a=[away], b=[fork])

    with pytest.raises(SourceError, match="http://b refuses the request: fork: the histories differ"):
        daemons.client().extent()

    assert daemons.pauses == 2, "the other one may come back"


@pytest.mark.parametrize("code", ["fork", "ahead_of_log"])
@pytest.mark.parametrize(("epoch", "is_lost"), [(3, True), (2, False), (1, False)])
def test_what_a_promotion_lost_is_not_awaited(given: Any, code: str, epoch: int, is_lost: bool) -> None:
    """Nobody has it but the old primary, which will drop it when it comes back."""
    refusal = HttpError(409, code, "the histories differ", {"epoch": epoch, "serial": 5})
    daemons = given(a=[ConnectError("connection refused")], b=[refusal])

    with pytest.raises(SourceError, match=code) as caught:
        daemons.client().extent(since=9, epoch=2)

    assert isinstance(caught.value, Superseded) is is_lost
    assert daemons.pauses == (0 if is_lost else 2)
    if is_lost:
        assert (caught.value.code, caught.value.retryable) == (code, False)
        assert "It is in epoch 3: the facts that it lacks were lost" in str(caught.value)


def test_a_refusal_of_another_kind_is_no_loss_in_any_epoch(given: Any) -> None:
    """A later epoch may begin after all that the query has."""
    busy = HttpError(503, "not_ready", "starting", {"epoch": 3})
    daemons = given(a=[busy, HEAD], b=[ConnectError("connection refused")])

    assert daemons.client().extent(since=9, epoch=2) == HEAD


@pytest.mark.parametrize(("epoch", "is_lost"), [(3, True), (2, False)])
def test_a_range_that_a_promotion_lost_is_not_awaited(given: Any, epoch: int, is_lost: bool) -> None:
    """A replica that is behind in the same epoch is."""
    behind = {"head": 5, "epoch": epoch}
    daemons = given(a=[behind, {"head": 6, "epoch": epoch}, body(FACTS)], b=[ConnectError("refused")])

    if is_lost:
        with pytest.raises(Superseded, match="http://a: its log ends at serial 5, before serial 6 of"):
            serials(daemons.client(), epoch=2)
    else:
        assert serials(daemons.client(), epoch=2) == [1, 2, 3, 4, 5, 6]
    assert daemons.pauses == (0 if is_lost else 1)


def test_a_trimmed_replica_is_no_loss_while_the_primary_is_away(given: Any) -> None:
    """The primary may have the facts: they must not be skipped."""
    trimmed = HttpError(410, "trimmed", "facts up to serial 3 were trimmed")
    daemons = given(a=[ConnectError("connection refused")], b=[trimmed])

    with pytest.raises(SourceError, match="no usable response from http://a") as caught:
        daemons.client().extent()

    assert not isinstance(caught.value, DataLoss)


def test_an_address_that_is_given_twice_is_a_mistake() -> None:
    """Of three daemons that somebody meant to name, one is missing."""
    with pytest.raises(ConfigError, match="the address http://a is given twice"):
        read_options({"url": "http://a,http://b,http://a"})
