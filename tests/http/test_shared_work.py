"""Results that are made one after another, each for all who wait for it."""

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from synrepl.transports.http.shared_work import SharedWork


class Pages:
    """Pages that are being made."""

    def __init__(self) -> None:
        self.shared = SharedWork()
        self.begun: list[Deferred[bytes]] = []

    def ask(self, kind: str = "") -> "Deferred[bytes]":
        return Deferred.fromCoroutine(self.shared.run(kind, self._make))

    async def _make(self) -> bytes:
        self.begun.append(Deferred())
        return await self.begun[-1]


def test_whoever_asks_meanwhile_shares_the_next_result() -> None:
    """It was begun after they asked, so that it shows what they have caused."""
    pages = Pages()
    first, *others = [pages.ask() for _ in range(3)]

    pages.begun[0].callback(b"0")

    assert b"0" == first.result
    assert [False, False] == [one.called for one in others]
    pages.begun[1].callback(b"1")
    assert [b"1", b"1"] == [one.result for one in others]
    assert 2 == len(pages.begun)


def test_kinds_are_made_in_turn() -> None:
    """One result at a time, whatever it is of."""
    pages = Pages()
    text, other, third = pages.ask("text"), pages.ask("other"), pages.ask("text")

    for number, begun in enumerate(["0", "1", "2"]):
        assert number + 1 == len(pages.begun)
        pages.begun[number].callback(begun.encode())

    assert [b"0", b"1", b"2"] == [text.result, other.result, third.result]


@pytest.mark.parametrize("leaves", [True, False], ids=["who makes it leaves", "it fails"])
def test_the_next_one_makes_what_another_could_not(leaves: bool) -> None:
    """Somebody who closes the connection, or an error, takes nothing from the others."""
    pages = Pages()
    running = pages.ask()
    maker, waiter = pages.ask(), pages.ask()
    pages.begun[0].callback(b"0")

    if leaves:
        maker.cancel()
    else:
        pages.begun[1].errback(OSError("no"))
    pages.begun[2].callback(b"2")

    assert [b"0", b"2"] == [running.result, waiter.result]
    failure = maker.result
    assert isinstance(failure, Failure)
    assert failure.check(CancelledError if leaves else OSError)
    maker.addErrback(lambda _: b"")
