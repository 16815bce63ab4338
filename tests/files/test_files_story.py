"""Whatever happens to a replica's files: nobody is given wrong bytes, and in the end all are there."""

import random
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger

from synrepl.files.files import Files
from synrepl.testing.memory_engine import DelayedThread
from tests.files.builders import checksum
from tests.files.setup import FilesCase, missing

CONTENTS = {checksum(data): data for data in (b"", b"x", b"0123456789", b"abcdefghijklmnop" * 4)}
NAMES = ["one", "two", "three", "four"]


class Setup(FilesCase):
    """A replica on a thread that takes its time, an upstream that misbehaves, kills at any moment."""

    def begin(self, seed: int, rule: Literal["eager", "lazy"]) -> None:
        """Before the first moment."""
        self.setUp()
        self.random = random.Random(seed)
        self.rule = rule
        self.names: dict[str, str] = {}
        self.upstream.files = dict(CONTENTS)
        self.alive: tuple[Files, DelayedThread] | None = None
        self.start()

    def start(self) -> None:
        """A life begins."""
        self.store = self.make_store()
        thread = DelayedThread(self.clock, lambda: self.random.random() * 0.02)
        files = Files(
            self.log,  # type: ignore[arg-type]
            self.store,
            thread,
            self.clock,
            fetch=self.upstream,
            rule=self.rule,
            workers=2,
            logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
        )
        self.alive = files, thread
        ensureDeferred(files.start())
        self.pass_time(0.5)

    def kill(self) -> None:
        """It ends in the middle of what it does."""
        assert self.alive is not None
        files, thread = self.alive
        ensureDeferred(thread.stop())
        files._queue.close()
        files._loops.cancel_all()
        files._disk.tasks.cancel_all()
        self.log._subscribers.clear()
        self.start()

    def pass_time(self, seconds: float) -> None:
        """In small steps, as the thread needs them."""
        for _ in range(int(seconds / 0.02) + 1):
            self.clock.advance(0.02)

    def say_something(self) -> None:
        name = self.random.choice(NAMES)
        sha256 = self.random.choice([None, *CONTENTS])
        self.names.pop(name, None)
        if sha256 is not None:
            self.names[name] = sha256
        self.say((name, sha256))

    def ask(self) -> None:
        sha256 = self.random.choice(list(CONTENTS))
        self.given(sha256, self.random.random() * 3)

    def given(self, sha256: str, patience: float) -> bool:
        """Whether somebody who asks is given the bytes, which are always the right ones."""
        assert self.alive is not None
        files = self.alive[0]

        async def read() -> bytes | None:
            if not await files.wait_for(sha256, patience):
                return None
            file = await files.open(sha256)
            if file is None:
                return None
            try:
                return await files.read(file, 0, file.size)
            finally:
                files.release(file)

        reading = ensureDeferred(read())
        self.pass_time(patience + 2)
        got: Any = self.successResultOf(reading)
        assert got is None or got == CONTENTS[sha256]
        return got is not None

    def damage(self) -> None:
        sha256 = self.random.choice([sha256 for sha256, data in CONTENTS.items() if data])
        if self.path(sha256).exists():
            if self.random.random() < 0.3:
                self.path(sha256).unlink()
            else:
                self.flip(sha256)
                self.pass_time(0.5)

    def misbehave(self) -> None:
        """Upstream does."""
        what = self.random.randrange(3)
        sha256 = self.random.choice(list(CONTENTS))
        if what == 0:
            self.upstream.files[sha256] = CONTENTS[sha256][:-1] + b"?"
        elif what == 1:
            self.upstream.files.pop(sha256, None)
        else:
            self.upstream.cut_after = self.random.choice([0, 4, 8, 40])

    def heal(self) -> None:
        """Upstream is itself again."""
        self.upstream.files = dict(CONTENTS)
        self.upstream.cut_after = None

    def wait_a_moment(self) -> None:
        self.pass_time(self.random.choice([0.01, 0.1, 1, 3]))

    def end(self) -> None:
        """Bad luck ends, and so must its consequences."""
        self.heal()
        self.kill()
        self.clock.advance(700)
        self.pass_time(5)
        for sha256 in set(self.names.values()):
            for _ in range(3):
                is_given = self.given(sha256, 5)
                if is_given:
                    break
            assert is_given, f"{sha256} never came"
        if self.rule == "eager":
            assert self.alive is not None
            assert missing(self.alive[0]) == []
        assert max(self.upstream.running.values(), default=0) <= 1
        assert not list(self.directory.glob("incoming/*"))
        self.doCleanups()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["eager", "lazy"]))
def test_no_wrong_bytes_ever_and_all_of_them_in_the_end(seed: int, rule: Literal["eager", "lazy"]) -> None:
    """Kills, damage on the disk, an upstream that lies, cuts and forgets."""
    setup = Setup()
    setup.begin(seed, rule)
    deeds = [setup.say_something] * 3 + [setup.ask, setup.wait_a_moment] * 2
    deeds += [setup.damage, setup.misbehave, setup.heal, setup.kill]

    for _ in range(40):
        setup.random.choice(deeds)()

    setup.end()
