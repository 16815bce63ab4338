"""A reader that stops reading: it costs the daemon nothing, others do not notice, it loses nothing."""

import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.processes.loading import (
    MIB,
    PATIENCE_SECONDS,
    Asker,
    RawReader,
    ids_of,
    made_rows,
    memory,
    report,
    size,
)
from tests.service.processes import Daemon

READERS = 20
WARM_UP = 10 * MIB
"""More than the facts that readers share in memory."""
LOAD = size(20, 400) * MIB
"""Enough to leave a reader behind, whatever the buffers of its socket hold."""
PADDING = 4000
BATCH = 10
MARGIN = 8 * MIB
"""What memory may grow by: the 8 MiB of facts that readers share are there before (the warm-up fills them),
so it is what waits in the transport of the reader that stopped (Twisted asks us to pause after 64 KiB, a
write to it is 256 KiB) and what the allocator keeps in between; with room for the noise of both."""


class Readers:
    """Some readers that read all they can, in one thread; each row's age when it arrives is noted."""

    def __init__(self, address: str, count: int) -> None:
        self.sent_at: dict[int, float] = {}
        self.ages: list[float] = []
        self.trouble: list[str] = []
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._readers = [RawReader(address, f"NAME reader{n}", "REPLICATE") for n in range(count)]
        self._last = [0] * count
        for position, reader in enumerate(self._readers):
            reader.wait_for(b"POSITION")
            self._selector.register(reader.socket, selectors.EVENT_READ, position)
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, -1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.data < 0:
                        return
                    self._take(key.data)
        except BaseException as error:
            with self._changed:
                self.trouble.append(repr(error))
                self._changed.notify_all()

    def _take(self, position: int) -> None:
        lines = self._readers[position].chunk()
        now = time.monotonic()
        last = self._last[position]
        for line in lines:
            if line.startswith(b"RDATA "):
                (number,) = ids_of(line[:80].decode())
                assert number == last + 1, f"reader {position} got {number} after {last}"
                last = number
                if (sent := self.sent_at.get(number)) is not None:
                    self.ages.append(now - sent)
        with self._changed:
            self._last[position] = last
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        """Until every one of them has the facts up to this one."""
        with self._changed:
            self._changed.wait_for(lambda: min(self._last) >= number or bool(self.trouble), PATIENCE_SECONDS)
            assert self.trouble == []
            assert min(self._last) >= number, (number, self._last)

    def p99(self) -> float:
        """How late the slowest hundredth of the rows came, since this was asked last."""
        ages, self.ages = sorted(self.ages), []
        return ages[len(ages) * 99 // 100]

    def close(self) -> None:
        """Read no more."""
        self._waker.close()
        self._thread.join(PATIENCE_SECONDS)
        self._woken.close()
        self._selector.close()
        for reader in self._readers:
            reader.socket.close()


def test_a_reader_that_stops_reading_harms_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """One hung worker must not take the homeserver's memory, the others' time, or its own facts.

    While it is stopped, the others have each row before the next ones are written.
    """
    # It never says PING, so that it must not be timed out: a short timeout would tell.
    options = ("--ping-seconds", "1", "--timeout-seconds", "3")
    with Daemon(tmp_path, options=options) as daemon, Asker(daemon.url) as asker:
        readers = Readers(daemon.follow, READERS)
        number = 0

        def load(rows: int, watch: Callable[[], None]) -> None:
            nonlocal number
            upto = number + rows
            while number < upto:
                numbers = range(number + 1, number + 1 + BATCH)
                sent = time.monotonic()
                readers.sent_at = dict.fromkeys(numbers, sent)
                asker.post("events", [made_rows("events", one, padding=PADDING) for one in numbers])
                number = numbers[-1]
                readers.wait_for(number)
                readers.sent_at = {}
                watch()

        try:
            highest = 0

            def watch() -> None:
                nonlocal highest
                highest = max(highest, memory(daemon.pid))

            load(WARM_UP // PADDING, watch)
            before, p99_before, first = highest, readers.p99(), number
            with RawReader(daemon.follow, "NAME stopped", "REPLICATE", receive_bytes=512 * 1024) as stopped:
                stopped.wait_for(b"POSITION")
                load(LOAD // PADDING, watch)
                grown, p99_after = highest - before, readers.p99()
                assert grown <= MARGIN, f"{grown / MIB:.1f} MiB more for a reader that stopped"

                at = time.monotonic()
                expected = first + 1
                rows = (line for line in stopped.lines() if line.startswith(b"RDATA "))
                while expected <= number:
                    (found,) = ids_of(next(rows)[:80].decode())
                    assert found == expected
                    expected += 1
                caught_up = time.monotonic() - at
                load(BATCH, watch)
                while expected <= number:
                    (found,) = ids_of(next(rows)[:80].decode())
                    assert found == expected
                    expected += 1
            told = asker.ask("GET", "/metrics").decode()
            (demoted,) = re.findall(r"^synrepl_readers_demoted_total (\S+)$", told, re.MULTILINE)
            assert float(demoted) >= 1, "it was never left behind: the test says nothing"
        finally:
            readers.close()
    report(
        f"stopped reader: {number - first} rows of {PADDING} bytes, memory"
        f" {before / MIB:.1f} MiB + {grown / MIB:.2f}, p99 {p99_before * 1000:.1f} ms, then"
        f" {p99_after * 1000:.1f} ms, caught up in {caught_up:.2f} s"
    )
