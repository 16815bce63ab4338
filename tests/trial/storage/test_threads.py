"""A real thread beside the real reactor keeps the contract of tests/storage/test_threads.py."""

import threading
from functools import partial

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from synrepl.errors import StorageError
from synrepl.storage.threads import ReactorThread


class ReactorThreadTests(TestCase):
    """One thing at a time, in order; the answer comes in the reactor's thread."""

    timeout = 60.0

    async def test_work_runs_elsewhere_in_order_and_answers_here(self) -> None:
        """A database call in the reactor's thread would hold up every connection."""
        here = threading.get_ident()
        before = set(threading.enumerate())
        thread = ReactorThread(reactor, "test")
        done: list[int] = []

        others = [thread.run(partial(done.append, n)) for n in range(100)]
        elsewhere = await thread.run(threading.get_ident)
        back = threading.get_ident()
        are_done = all(other.called for other in others)
        last = thread.run(partial(done.append, 100))
        await thread.stop()
        await thread.stop()
        is_last_done = last.called
        with self.assertRaises(StorageError):
            await thread.run(lambda: None)

        self.assertNotEqual(here, elsewhere)
        self.assertEqual(here, back)
        self.assertEqual((True, True, list(range(101))), (are_done, is_last_done, done))
        self.assertEqual(set(), set(threading.enumerate()) - before)

    async def test_one_that_was_never_used_stops_at_once(self) -> None:
        """A daemon that fails to start must be able to end."""
        before = set(threading.enumerate())

        await ReactorThread(reactor, "test").stop()

        self.assertEqual(set(), set(threading.enumerate()) - before)
