"""Several daemons on one Redis, under load, that die and come back at the same addresses."""

import itertools
import random
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.processes.channel import Fact, Kept, described, eventually, metric, on_redis, redis_of
from tests.processes.loading import PATIENCE_SECONDS, Asker, Refused, Unanswered
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon

__all__ = ["Deployment", "Load", "rows_of"]

POST_SECONDS: Final = 0.05
AGAIN_SECONDS: Final = 0.1


def rows_of(stream: str, number: int) -> list[Any]:
    """The rows of the fact with this number; every seventh fact has three of them."""
    user = f"@~{number}~:a"
    row: list[Any]
    match stream:
        case "events":
            row = ["ev", [f"$~{number}~", "!r:a", "m.room.message", None, None, None, None, False, False]]
        case "receipts":
            row = ["!r:a", "m.read", user, "$e:a", None, {}]
        case "caches":
            return [["get_user_by_id", [user], number]]
        case "device_lists":
            row = [user, False, False]
        case _:
            row = [user]
    return [row] * (3 if number % 7 == 0 else 1)


class Deployment:
    """Daemons by name; `writes` are the streams that each tells, none for one that only listens.

    Each knows the HTTP address of every other one, which stays the same as long as it lives and comes back.
    """

    def __init__(self, folder: Path, writes: dict[str, str]) -> None:
        self.redis = RedisServer()
        self.writes = writes
        self.daemons: dict[str, Daemon] = {}
        self.kept: dict[str, Kept] = {}
        self.ended: Counter[str] = Counter()
        """The sums of the metrics of lives that are over."""
        self._folder = folder
        self._ports: dict[str, tuple[int, int]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.redis)
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in self.daemons.values():
            daemon.kill()
        self._stack.close()

    def _start_all(self) -> None:
        # Once without knowing of each other, to learn the ports.
        for name in self.writes:
            self._config(name).write_text("{}\n")
            self.start(name)
            daemon = self.daemons[name]
            self._ports[name] = tuple(int(at.rsplit(":", 1)[1]) for at in (daemon.follow, daemon.url))  # type: ignore[assignment]
        for daemon in self.daemons.values():
            daemon.terminate()
        addresses = {name: f"http://127.0.0.1:{http}" for name, (_, http) in self._ports.items()}
        for name in self.writes:
            others = {other: address for other, address in addresses.items() if other != name}
            self._config(name).write_text(yaml.safe_dump({"instance_map": others}))
            self.start(name)
        for name in self.writes:
            self.wait_until_up(name)
            self.kept[name] = Kept(self.daemons[name].url)

    def _config(self, name: str) -> Path:
        return self._folder / f"{name}.yaml"

    def start(self, name: str) -> None:
        """Start it, as it was."""
        port, http_port = self._ports.get(name, (0, 0))
        self.daemons[name] = on_redis(
            *(self._folder, self.redis, name, "--config", str(self._config(name))),
            writes=self.writes[name],
            port=port,
            http_port=http_port,
        )

    def wait_until_up(self, name: str) -> None:
        """Until it hears, and tells if it has anything to tell."""
        url = self.daemons[name].url

        def is_up() -> bool:
            had = redis_of(url)
            return bool(
                had["subscribed"] and had["publishing"] and had["is_writing"] == bool(self.writes[name])
            )

        eventually(is_up, f"{name} on the channel")

    def kill(self, name: str) -> None:
        """End it, as a crash would."""
        for what in ("detected", "repaired", "lost"):
            self.ended[what] += int(metric(self.daemons[name].url, f"synrepl_gaps_{what}_total"))
        self.daemons[name].kill()

    def own(self, name: str) -> list[Fact]:
        """What it wrote itself."""
        return [fact for fact in self.kept[name].read() if fact.writer == name]

    def everything(self) -> Counter[Fact]:
        """What all of them wrote."""
        return Counter(itertools.chain.from_iterable(self.own(name) for name in self.writes))

    def gaps(self, name: str) -> dict[str, int]:
        """How many its present life has had."""
        url = self.daemons[name].url
        return {
            what: int(metric(url, f"synrepl_gaps_{what}_total")) for what in ("detected", "repaired", "lost")
        }

    def describe(self) -> str:
        """What all say."""
        return "\n".join(
            f"{name}: {described(daemon.url)}\n" + "\n".join(daemon.lines[6:][-30:])
            for name, daemon in self.daemons.items()
        )


class Load:
    """Posts facts to each writer's streams, some a time, and asks again until there is an answer."""

    def __init__(self, deployment: Deployment, *, seed: int = 0) -> None:
        self.acknowledged: dict[int, tuple[str, str, int]] = {}
        self.trouble: list[str] = []
        self._deployment = deployment
        self._numbers = itertools.count(1)
        self._gate = threading.Lock()
        self._end = threading.Event()
        self._seed = seed
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._end.clear()
        for name, streams in self._deployment.writes.items():
            for stream in filter(None, streams.split(",")):
                thread = threading.Thread(target=self._run, args=(name, stream), daemon=True)
                self._threads.append(thread)
                thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "an append has no answer yet"
        self._threads.clear()
        assert self.trouble == []

    def wait_for(self, count: int) -> None:
        """Until so many more were acknowledged."""
        want = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= want or self.trouble, f"{count} more facts")
        assert self.trouble == []

    def pass_seconds(self, seconds: float) -> None:
        """Go on for so long."""
        self._end.wait(seconds)

    def _run(self, name: str, stream: str) -> None:
        chance = random.Random(f"{self._seed} {name} {stream}")
        try:
            while not self._end.wait(chance.uniform(0, 2 * POST_SECONDS)):
                with self._gate:
                    numbers = [next(self._numbers) for _ in range(chance.randint(1, 5))]
                self._append(name, stream, numbers)
        except BaseException as error:
            self.trouble.append(repr(error))

    def _append(self, name: str, stream: str, numbers: list[int]) -> None:
        facts = [rows_of(stream, number) for number in numbers]
        while True:
            try:
                with Asker(self._deployment.daemons[name].url) as asker:
                    answer = asker.post(stream, facts, key=f"{name}-{numbers[0]}")
                break
            except Refused as refused:
                if refused.status < 500:
                    raise
            except Unanswered:
                pass
            threading.Event().wait(AGAIN_SECONDS)
        with self._gate:
            for number, token in zip(numbers, answer["tokens"], strict=True):
                self.acknowledged[number] = (stream, name, token)
