"""Running coroutines by hand, up to where they wait, and from there."""

from twisted.internet.defer import Deferred

from synrepl.base.tasks import _drive, step_eagerly


def test_what_need_not_wait_is_done_at_once() -> None:
    """As most subscribers are: no Deferred is made for them."""
    done: list[str] = []

    async def work() -> None:
        done.append("done")

    assert step_eagerly(work()) is None
    assert ["done"] == done


def test_what_waits_goes_on_when_it_can() -> None:
    """With what it waited for."""
    answer: Deferred[int] = Deferred()
    seen: list[int] = []

    async def work() -> None:
        seen.append(await answer)

    assert step_eagerly(work()) is not None
    answer.callback(3)

    assert [3] == seen


def test_what_nobody_waits_for_any_more_ends_in_silence() -> None:
    """When both are garbage the collector closes them in any order."""
    never: Deferred[None] = Deferred()

    async def work() -> None:
        await never

    coroutine = work()
    rest = _drive(coroutine, coroutine.send(None))
    next(rest)
    coroutine.close()

    rest.close()
