"""Made-up claims, subscriptions and hand-overs must not stop a primary; real promotions must.

The attackers are a process without a key, where nobody has one, and the holder of a key that may only
replicate. A daemon that they name is asked nothing.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.processes.channel import SECRET, eventually, metric
from tests.processes.loading import Refused, Unanswered, report
from tests.processes.replicas import Cluster, Member, code, told
from tests.replicas.processes.replica_line import open_line

LATER = 999_999
FAR = 2**62
HUGE = 2**70

NOT_BELIEVED = "the claim came without a key that may administer, and no daemon in --upstream confirms it"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """A primary with five facts, and its replica; nobody has a secret."""
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = cluster.add("replica", upstream=primary.front)
        primary.post("events", *range(1, 6))
        cluster.wait_until_same()
        yield primary, replica


def assert_primary(member: Member, number: int) -> None:
    """It is primary and takes facts, now and after a restart."""
    for attempt in range(2):
        assert member.status()["role"] == "primary", member.describe()
        member.post("events", number + attempt)
        if not attempt:
            member.restart()


def refused(member: Member, path: str, said: Any) -> tuple[int, str, str]:
    """Status, code and message of the refusal of this POST; the message is one line."""
    with pytest.raises(Refused) as caught:
        member.ask("POST", path, said)
    message = told(caught.value)["message"]
    assert "\n" not in message
    return caught.value.status, code(caught.value), message


def claim(member: Member, **other: Any) -> dict[str, Any]:
    """A claim of a stranger in the next epoch of this history."""
    said = member.status()
    made = {"epoch": said["epoch"] + 1, "uuid": "stranger", "address": "", "history": said["history"]}
    return made | other


def subscribe(
    member: Member, epoch: int, secret: str = "", *, over_http: bool, **hello: str
) -> dict[str, Any]:
    """Subscribe as a replica in this epoch; gives the refusal."""
    with open_line(member.daemon, secret, over_http=over_http) as line:
        line.greet(secret, **({"uuid": "u1", "name": "u1"} | hello))
        line.hear("WELCOME")
        history = asked(member, secret, "GET", "/v1/status")[1]["history"]
        position = {"epoch": epoch, "serial": 0, "digest": ""}
        line.say("SUBSCRIBE " + json.dumps({"history": history, "position": position}))
        return line.refusal()


class Liar:
    """An HTTP server that answers as a daemon; `lie` changes what it says of itself."""

    def __init__(self, lie: Callable[[dict[str, Any]], Any], truth: dict[str, Any], seconds: float) -> None:
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._end = threading.Event()
        liar = self

        class Handler(BaseHTTPRequestHandler):
            """Answers GET."""

            def do_GET(self) -> None:
                """Lie, after a while."""
                liar.asked.append(self.path)
                liar.headers.append(dict(self.headers))
                liar._end.wait(seconds)
                said: Any = dict(truth)
                lie(said)
                if self.path.startswith("/v1/digests"):
                    serials = self.path.partition("=")[2].split(",")
                    said = {"digests": dict.fromkeys(serials, "ff" * 32)}
                body = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"- http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


@contextmanager
def liar(
    member: Member, lie: Callable[[dict[str, Any]], Any] = lambda said: None, *, seconds: float = 0.0
) -> Iterator[Liar]:
    """A stranger who says that it was promoted at the end of this member's log."""
    truth = member.ask("GET", "/v1/replication")
    position = truth["position"]
    epoch_start = {
        "epoch": 2,
        "serial": position["serial"],
        "digest": position["digest"],
        "at_ms": 1,
        "why": "promoted",
    }
    truth |= {
        "uuid": "stranger",
        "role": "primary",
        "position": position | {"epoch": 2},
        "epoch_starts": [epoch_start],
    }
    made = Liar(lie, truth, seconds)
    try:
        yield made
    finally:
        made.close()


# -- subscriptions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [LATER, FAR])
def test_a_subscription_over_the_line_port_fences_nobody(pair: tuple[Member, Member], epoch: int) -> None:
    """Anybody may connect there."""
    primary, _ = pair
    found = subscribe(primary, epoch, over_http=False)

    assert (found["code"], found["message"]) == (
        "other_epoch",
        f"u1 is in epoch {epoch}, later than epoch 1 here",
    )
    if epoch == LATER:
        eventually(
            lambda: any("u1 knows epoch 999999" in one["what"] for one in primary.status()["errors"]),
            "the status tells of the epoch",
        )
    eventually(lambda: metric(primary.url, "synrepl_later_epochs_total") == 1, "the epoch is counted")
    assert_primary(primary, 10)


@pytest.mark.parametrize("epoch", [LATER, FAR])
def test_a_subscription_over_http_fences_nobody(pair: tuple[Member, Member], epoch: int) -> None:
    """Nor there; an address that it gives is asked nothing."""
    primary, _ = pair
    with liar(primary) as stranger:
        found = subscribe(primary, epoch, over_http=True, address=stranger.address)
        if epoch == LATER:
            eventually(
                lambda: any("u1 at - http" in one["what"] for one in primary.status()["errors"]),
                "the status tells of the epoch",
            )

    assert found["code"] == "other_epoch"
    assert found["message"] == f"u1 is in epoch {epoch}, later than epoch 1 here"
    assert stranger.asked == []
    assert_primary(primary, 10)


# -- claims ------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_a_claim_without_a_history_is_refused(pair: tuple[Member, Member]) -> None:
    """As is one that names none."""
    primary, _ = pair
    made = claim(primary, epoch=LATER, uuid="z", history="")

    assert refused(primary, "/v1/claim", made) == (
        400,
        "bad_request",
        "the claim names no history; it must name that of its log",
    )
    del made["history"]
    assert refused(primary, "/v1/claim", made)[:2] == (400, "bad_request")
    assert refused(primary, "/v1/claim", claim(primary, history="x"))[:2] == (409, "other_history")
    assert_primary(primary, 10)


def test_a_claim_that_names_no_address_is_refused(pair: tuple[Member, Member]) -> None:
    """Nobody can be asked."""
    primary, _ = pair
    for epoch in (2, LATER):
        assert refused(primary, "/v1/claim", claim(primary, epoch=epoch)) == (
            409,
            "not_verified",
            NOT_BELIEVED,
        )
    for epoch in (0, HUGE):
        assert refused(primary, "/v1/claim", claim(primary, epoch=epoch)) == (
            409,
            "epoch_too_far",
            f"the claim names epoch {epoch}; an epoch must be from 1 to 2**53",
        )
    assert_primary(primary, 10)


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], int]] = {
    "nothing but the truth of a primary": (lambda said: None, 2),
    "another uuid": (lambda said: said.update(uuid="x"), 2),
    "another history": (lambda said: said.update(history="x"), 2),
    "a replica": (lambda said: said.update(role="replica"), 2),
    "no turn": (lambda said: said.update(epoch_starts=[]), 2),
    "another digest": (
        lambda said: [one.update(digest="ff" * 32) for one in (said["epoch_starts"][0], said["position"])],
        2,
    ),
    "two digests": (lambda said: said["epoch_starts"][0].update(digest="ff" * 32), 2),
    "an epoch of later": (lambda said: said["epoch_starts"][0].update(serial=6), 2),
    "a shorter log": (lambda said: said["epoch_starts"][0].update(serial=3, digest="ff" * 32), 2),
    "a lower epoch": (lambda said: None, LATER),
    "nonsense": (lambda said: said.update(position="x"), 2),
}


def test_a_claim_of_a_stranger_that_lies_is_refused(pair: tuple[Member, Member]) -> None:
    """Whatever it would answer, it is not asked."""
    primary, _ = pair
    for count, (lie, (change, epoch)) in enumerate(LIES.items(), start=1):
        with liar(primary, change) as stranger:
            made = claim(primary, epoch=epoch, address=stranger.address)
            assert refused(primary, "/v1/claim", made) == (409, "not_verified", NOT_BELIEVED), lie

        assert stranger.asked == [], lie
        assert metric(primary.url, "synrepl_claims_refused_total", code="not_verified") == count, lie
        errors = str(primary.status()["errors"])
        assert f"stranger at {stranger.address} claims it in epoch {epoch}" in errors, lie
        assert primary.status()["role"] == "primary", lie
    assert_primary(primary, 10)


def test_a_stranger_that_answers_slowly_holds_up_nobody(pair: tuple[Member, Member]) -> None:
    """It would be waited for, if it were asked: claims are answered at once, and facts are taken."""
    primary, _ = pair
    with liar(primary, seconds=60) as stranger:
        made = claim(primary, address=stranger.address)
        codes: list[str] = []

        def ask() -> None:
            with suppress(Unanswered):
                codes.append(refused(primary, "/v1/claim", made)[1])

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(12)]
        for thread in threads:
            thread.start()
        primary.post("events", 8)
        for thread in threads:
            thread.join(60)
        assert codes == ["not_verified"] * 12
        assert stranger.asked == []
        assert_primary(primary, 10)


def test_a_claim_to_a_replica_does_not_reach_its_primary(pair: tuple[Member, Member]) -> None:
    """The replica stays with its upstream, also through a restart."""
    primary, replica = pair
    with liar(primary) as stranger:
        for other in ({"address": stranger.address}, {"address": "", "epoch": LATER}, {"epoch": 1}):
            assert refused(replica, "/v1/claim", claim(replica, **other))[1] == "not_verified"
        assert stranger.asked == []
        assert_primary(primary, 10)
        replica.restart()
        replica.wait_for(lambda said: said["serial"] == primary.place().serial, "the facts of the primary")
    assert replica.status()["role"] == "replica"


def test_addresses_that_cannot_be_are_refused(pair: tuple[Member, Member]) -> None:
    """Before anything is done with them."""
    primary, _ = pair
    for address in ("- file:///etc/passwd", "- http://", "- http://[x", "x" * 1001, "- http://a\u001b[2J/"):
        status, word, message = refused(primary, "/v1/claim", claim(primary, address=address))
        assert (status, word) == (400, "bad_request"), address
        assert message.isprintable()
    assert_primary(primary, 10)


# -- hand-overs --------------------------------------------------------------------------------------------


def test_a_hand_over_to_a_stranger_is_refused(pair: tuple[Member, Member]) -> None:
    """Nor does a replica get one that is not about to be promoted."""
    primary, replica = pair
    there = replica.status()
    with liar(primary, lambda said: said.update(role="replica", promoting=True)) as stranger:
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({"seconds": 15}, 400, "bad_request"),
            ({"seconds": 15, "uuid": "stranger", "address": stranger.address}, 409, "unknown_replica"),
            ({"seconds": 15, "uuid": there["uuid"], "address": stranger.address}, 409, "not_verified"),
            ({"seconds": 15, "uuid": there["uuid"], "address": there["address"]}, 409, "not_verified"),
            ({"seconds": 300, "uuid": there["uuid"], "address": there["address"]}, 400, "bad_request"),
        ]
        for said, status, word in cases:
            found = refused(primary, "/v1/handover", said)
            assert found[:2] == (status, word), (said, found)
            primary.post("events", 8)
        assert stranger.asked == []
    assert_primary(primary, 10)


# -- and the good ones -------------------------------------------------------------------------------------


def fenced(primary: Member, what: str) -> None:
    """Wait until it is, and tell how long that took."""
    begun = time.monotonic()
    primary.wait_for(lambda said: said["role"] == "fenced", "a fenced daemon")
    report(f"fenced {time.monotonic() - begun:.2f} s after {what}")


def test_a_promotion_in_order_fences_the_old_primary(pair: tuple[Member, Member]) -> None:
    """Within seconds, without a secret: it has agreed to hand over."""
    primary, replica = pair
    replica.ask("POST", "/v1/promote", {})
    fenced(primary, "a promotion in order")
    assert replica.status()["role"] == "primary"


@pytest.mark.parametrize("is_native", [False, True])
def test_a_promotion_by_force_fences_a_primary_that_lists_the_replica(
    pair: tuple[Member, Member], is_native: bool
) -> None:
    """Without a secret. Its operator made the first primary list the replica as the manual says: a start
    with --upstream, and one promotion by force. It stays primary from then on."""
    primary, replica = pair
    primary.list_as_primary(replica, over_http=not is_native)
    assert_primary(primary, 10)
    replica.wait_for(lambda said: said["serial"] == primary.place().serial, "the facts of the primary")

    with primary.native.broken(), primary.http.broken():
        replica.ask("POST", "/v1/promote", {"force": True})
        primary.post("events", 8)
    fenced(primary, "a promotion by force")
    assert replica.status()["role"] == "primary"


def test_a_promotion_by_force_is_a_problem_of_a_primary_that_lists_nobody(
    pair: tuple[Member, Member],
) -> None:
    """Without a secret it cannot know who that is; its operator reads of it, and the claimant knows it."""
    primary, replica = pair
    with primary.native.broken(), primary.http.broken():
        replica.ask("POST", "/v1/promote", {"force": True})
    there = replica.status()
    primary.wait_for(
        lambda said: f"{there['uuid']} at {there['address']} claims it in epoch 2" in str(said["errors"]),
        "a problem in the status",
    )
    assert primary.status()["role"] == replica.status()["role"] == "primary"
    assert primary.front_url in str(replica.status()["unnotified"])


# -- with secrets ------------------------------------------------------------------------------------------


def asked(member: Member, secret: str, method: str, path: str, said: Any = None) -> tuple[int, Any]:
    """Status and answer of a request that shows this secret."""
    connection = http.client.HTTPConnection(member.url.removeprefix("http://"), timeout=60)
    try:
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        connection.request(method, path, None if said is None else json.dumps(said), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """A primary and its replica with a shared secret, and a key that may replicate only."""
    shared, keys = tmp_path / "shared", tmp_path / "keys"
    shared.write_text(SECRET)
    keys.write_text("lisbon of-lisbon replicate\n")
    for path in (shared, keys):
        path.chmod(0o600)
    options = ("--secret-file", str(shared))
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary", *options, "--keys-file", str(keys))
        replica = cluster.add("replica", *options, upstream=primary.front)
        cluster.wait_until_same()
        replica.wait_for(lambda said: said["state"] == "serving", "a replica")
        yield primary, replica


def test_a_key_that_may_only_replicate_learns_no_other(keyed: tuple[Member, Member]) -> None:
    """Its holder names an address of his own, and knows a later epoch: he is asked nothing there."""
    primary, replica = keyed
    history = asked(primary, SECRET, "GET", "/v1/status")[1]["history"]
    made = Liar(lambda said: None, {"history": "x", "uuid": "x", "role": "primary"}, 0)
    try:
        found = subscribe(
            primary, 9, "of-lisbon", over_http=True, uuid="u1", name="lisbon", address=made.address
        )
        assert found["code"] == "other_epoch"
        eventually(lambda: "knows epoch 9" in str(primary.status()["errors"]), "a problem in the status")
        claimed = {"epoch": 2, "uuid": "x", "address": made.address, "history": history}
        attempts = [("/v1/claim", claimed | {"epoch": epoch}) for epoch in (0, 1, 2, LATER, FAR)]
        attempts += [("/v1/claim", claimed | {"address": address}) for address in ("", "- http://[x")]
        attempts += [("/v1/claim", claimed | {"history": other}) for other in ("", "x")]
        attempts += [("/v1/handover", {"seconds": seconds}) for seconds in (0, 15, 300)]
        there = {"seconds": 15, "uuid": asked(replica, SECRET, "GET", "/v1/status")[1]["uuid"]}
        attempts.append(("/v1/handover", there | {"address": made.address}))
        for path, body in attempts:
            assert asked(primary, "of-lisbon", "POST", path, body)[0] == 403, body
    finally:
        made.close()

    assert [] == made.asked
    assert not any(secret in str(one) for one in made.headers for secret in (SECRET, "of-lisbon"))
    assert asked(primary, SECRET, "GET", "/v1/status")[1]["role"] == "primary"


def test_a_proven_claim_counts_for_the_next_epoch_only(keyed: tuple[Member, Member]) -> None:
    """Whoever may administer is believed without a question; a far epoch is not."""
    primary, _ = keyed
    history = asked(primary, SECRET, "GET", "/v1/status")[1]["history"]
    made = Liar(lambda said: None, {"history": history, "uuid": "x", "role": "primary"}, 0)
    try:
        claimed = {"uuid": "x", "address": made.address, "history": history}
        status, answer = asked(primary, SECRET, "POST", "/v1/claim", claimed | {"epoch": 3})
        assert (status, answer["error"]) == (409, "epoch_too_far")
        assert asked(primary, SECRET, "GET", "/v1/status")[1]["role"] == "primary"
        status, answer = asked(primary, SECRET, "POST", "/v1/claim", claimed | {"epoch": 2})
        assert (status, answer["role"]) == (200, "fenced")
    finally:
        made.close()
    assert [] == made.asked


@pytest.mark.parametrize("force", [False, True])
def test_a_proven_promotion_fences_a_primary_that_cannot_ask_back(
    keyed: tuple[Member, Member], force: bool
) -> None:
    """The old primary reaches out to nobody, as behind a NAT; that the replica is its own is enough."""
    primary, replica = keyed
    with replica.http.broken():
        status, answer = asked(replica, SECRET, "POST", "/v1/promote", {"force": force})
        assert (status, answer.get("role")) == (200, "primary"), answer
        begun = time.monotonic()
        primary.wait_for(lambda said: said["role"] == "fenced", "a fenced daemon")
        seconds = time.monotonic() - begun
    assert replica.status()["role"] == "primary"
    report(f"fenced {seconds:.2f} s after a proven promotion {'by force' if force else 'in order'}")
