"""The guard by which every test of the log checks the table of threads (`synrepl/storage/engine.py`)."""

from collections.abc import Callable
from typing import Any

import pytest
from twisted.python.failure import Failure

from synrepl.storage.engine import SQLEngine
from synrepl.storage.threads import ImmediateThread
from synrepl.testing.memory_engine import MemoryEngine
from tests.storage.thread_table import READING, WRITING, ThreadGuard

Call = Callable[[SQLEngine], object]

CALLS: dict[str, tuple[Call, str]] = {
    "head": (lambda engine: engine.head(), WRITING),
    "notes.all": (lambda engine: engine.notes.all(), WRITING),
    "pages.size": (lambda engine: engine.pages.size(0), WRITING),
    "pages.facts": (lambda engine: engine.pages.facts(after=0, upto=0, limit=1), READING),
    "digest_at": (lambda engine: engine.digest_at(0), READING),
}


@pytest.mark.parametrize("function", CALLS)
def test_a_call_from_the_wrong_thread_is_refused_and_noted(function: str) -> None:
    """The log may take the refusal for a failure of its database, so that it is noted too."""
    guard, (call, thread) = ThreadGuard(ImmediateThread()), CALLS[function]
    engine = guard.engine(opened())
    right, wrong = guard.writing, guard.reading
    if thread == READING:
        right, wrong = wrong, right

    done: Any = right.run(lambda: call(engine))
    assert not isinstance(done.result, Failure)
    assert [] == guard.violations
    done = wrong.run(lambda: call(engine))
    done.addErrback(lambda failure: failure.trap(AssertionError))
    assert 1 == len(guard.violations)
    with pytest.raises(AssertionError, match=f"{function} is for the {thread} thread, not for the reactor"):
        call(engine)


def test_a_staged_copy_is_made_by_the_reactor_and_opened_in_the_writing_thread() -> None:
    """To make it opens nothing."""
    guard = ThreadGuard(ImmediateThread())
    staged = guard.engine(opened()).staging()

    with pytest.raises(AssertionError, match="open is for the writing thread, not for the reactor"):
        staged.open()


def opened() -> SQLEngine:
    """An engine of an empty log."""
    engine = MemoryEngine()
    engine.open()
    return engine
