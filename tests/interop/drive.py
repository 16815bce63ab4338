"""A few users who do everything that leaves rows in the streams; the same seed does the same again.

(Not on the same processes altogether: who persists a room hangs on its id, which the homeserver draws.)

Not to be had from one homeserver alone: rows of `backfill`, `un_partial_stated_room` and
`un_partial_stated_event` (events of other homeservers), of `presence_federation` and `federation` (told to
other homeservers).
"""

import random
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from tests.interop.client import Client, Refused
from tests.interop.homeserver import MAIN, WORKER, Homeserver

USERS: Final = 3
ROOMS: Final = 6
END_SECONDS: Final = 180.0

DRIVEN: Final = frozenset(
    {
        "account_data",
        "caches",
        "device_lists",
        "events",
        "presence",
        "profile_updates",
        "push_rules",
        "pushers",
        "quarantined_media",
        "receipts",
        "sticky_events",
        "thread_subscriptions",
        "to_device",
        "typing",
    }
)
"""The streams that get rows."""


class Driver:
    """Users and rooms of their own, and what they do in a round.

    Their requests go to all processes of the homeserver that serve them.
    """

    def __init__(self, homeserver: Homeserver, seed: int = 1) -> None:
        self.rounds = 0
        self.avoided = frozenset[str]()
        """The processes that no request is sent to now, where there is a choice."""
        self._homeserver = homeserver
        self._seed = seed
        self._random = random.Random(seed)
        self._users: list[Client] = []
        self._rooms: list[str] = []
        self._said: dict[str, str] = {}
        self._left: str | None = None
        self._turns = 0

    def prepare(self) -> None:
        """Register the users, and bring them together. The first of them administers the homeserver."""
        names = [f"user{number}-{self._seed}" for number in range(USERS)]
        self._users = [Client.register(self._homeserver, name, admin=name == names[0]) for name in names]
        for number in range(ROOMS):
            # The event persisters share the rooms among them.
            room = self._users[0].create_room(preset="public_chat", name=f"Room {number} of {self._seed}")
            for user in self._users[1:]:
                user.join(room)
            self._rooms.append(room)
            self._said[room] = self._users[0].send(room, "Welcome.")

    def round(self) -> None:
        """Everything once."""
        self.rounds += 1
        user, friend = self._random.sample(self._users, 2)
        room = self._random.choice(self._rooms)
        for do in (self._talk, self._tell, self._keep, self._devices, self._rooms_come_and_go):
            do(user, friend, room)
        self._media()

    def round_without_redis(self) -> None:
        """What users can do while there is no Redis: messages, logins and the like wait until it is back."""
        self.rounds += 1
        user, friend = self._random.sample(self._users, 2)
        room = self._random.choice(self._rooms)
        event = self._said[room]
        self._keep(user, friend, room)
        self._media()
        user.name_device(f"Device {self.rounds}")
        user.send_to_devices([friend.user], {"round": self.rounds})
        user.read(room, event)
        user.subscribe(room, event)
        user.type(room, True)
        user.type(room, False)
        user.be("online", f"in round {self.rounds}")

    def run(self, rounds: int) -> None:
        """So many rounds, prepared if need be."""
        if not self._users:
            self.prepare()
        for _ in range(rounds):
            self.round()

    def _talk(self, user: Client, friend: Client, room: str) -> None:
        at = self._random.choice(self._processes)
        said = f"Round {self.rounds} \N{SNOWMAN}"
        root = user.send(room, said, at=at)
        answer = friend.send(room, "Indeed.", thread=root, at=self._other(at))
        friend.react(room, root, "+1")
        friend.redact(room, friend.send(room, "Oops.", at=at), at=at)
        user.send(room, "Stick!", is_sticky=True, at=self._other(at))
        receipts = self._writers("receipts")
        first = at if at in receipts else self._other(at, receipts)
        user.read(room, root, at=first)
        user.read(room, answer, thread=root, at=self._other(first, receipts))
        friend.read(room, root, kind="m.read.private", thread="main")
        if "thread_subscriptions" in self._homeserver.named_writers:
            writers = self._writers("thread_subscriptions")
            for writer in writers:
                friend.subscribe(room, root, at=writer)
                friend.subscribe(room, root, is_wanted=False, at=self._other(writer, writers))

    def _tell(self, user: Client, friend: Client, room: str) -> None:
        user.type(room, True)
        friend.type(room, True)
        user.be("online", f"in round {self.rounds}")
        friend.be("unavailable")
        user.sync(at=self._other(WORKER))
        friend.sync()
        user.type(room, False)
        friend.type(room, False)
        friend.be("online")

    def _keep(self, user: Client, friend: Client, room: str) -> None:
        number = self.rounds
        user.set_account_data("test.number", {"round": number})
        user.set_account_data("test.number", {"round": number}, room)
        user.tag(room, "u.test", self._random.random())
        friend.tag(room, "u.test", 0.5)
        friend.tag(room, "u.test")
        user.set_push_rule("word", f"word{number}")
        user.set_push_rule("word", None)
        user.set_pusher(f"key-{self._seed}-{number}")
        user.set_pusher(f"key-{self._seed}-{number}", is_wanted=False)
        user.set_display_name(f"Somebody {number}", at=self._random.choice(self._processes))

    def _devices(self, user: Client, friend: Client, room: str) -> None:
        writers = self._writers("device_lists")
        user.name_device(f"Device {self.rounds}", at=self._random.choice(writers))
        user.upload_keys(at=self._random.choice(writers))
        friend.send_to_devices([one.user for one in self._users], {"round": self.rounds})
        passing = friend.log_in(f"PASSING{self.rounds}", at=self._other(MAIN))
        passing.upload_keys()
        passing.sync(at=self._other(MAIN))
        passing.log_out()

    def _rooms_come_and_go(self, user: Client, friend: Client, room: str) -> None:
        passing = user.create_room(at=self._random.choice(self._processes), preset="private_chat")
        user.invite(passing, friend.user)
        friend.join(passing, at=self._other(WORKER))
        user.set_state(passing, "m.room.name", {"name": f"Passing {self.rounds}"})
        user.set_state(passing, "m.room.topic", {"topic": "Nothing lasts"}, at=MAIN)
        friend.leave(passing)
        # Not the one just left: Synapse may still write of it in the background, and then fails to delete it.
        left, self._left = self._left, passing
        if left is not None:
            self._users[0].delete_room(left)

    def _media(self) -> None:
        administrator = self._users[0]
        media = administrator.upload(f"Round {self.rounds} of {self._seed}".encode())
        administrator.quarantine(media)
        administrator.quarantine(media, is_wanted=False)

    @property
    def _processes(self) -> list[str]:
        return [name for name in self._homeserver.processes if name not in self.avoided]

    def _writers(self, stream: str) -> list[str]:
        return [name for name in self._homeserver.writers_of(stream) if name not in self.avoided]

    def _other(self, at: str, among: Sequence[str] = ()) -> str:
        """Another of these processes, or of all workers, in turn; the same one if there is no other."""
        among = among or [name for name in self._processes if name != MAIN]
        others = [name for name in among if name != at] or list(among)
        self._turns += 1
        return others[self._turns % len(others)]


class Driving:
    """Rounds in the background while the test does something else; a context manager that ends them.

    What went wrong in a round is raised at the end. With `goes_on`, a round that fails is given up, and the
    next one begins: for tests that restart processes meanwhile.
    """

    def __init__(self, driver: Driver, *, goes_on: bool = False) -> None:
        self._driver = driver
        self._goes_on = goes_on
        self.given_up = 0
        self._errors: list[BaseException] = []
        self._is_ending = threading.Event()
        self._done = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        self._thread.join(END_SECONDS)
        assert not self._thread.is_alive(), "a round has no end"
        if self._errors and kind is None:
            raise self._errors[0]

    def wait_for_rounds(self, more: int, seconds: float = END_SECONDS) -> None:
        """Return once so many more rounds are over."""
        with self._done:
            wanted = self._driver.rounds + more
            is_there = self._done.wait_for(
                lambda: self._errors != [] or self._driver.rounds > wanted, seconds
            )
        assert not self._errors, self._errors
        assert is_there, "the rounds do not go on"

    def keep_going(self, seconds: float) -> None:
        """Return after so many seconds. Raises when the rounds fail or do not go on."""
        with self._done:
            self._done.wait_for(lambda: self._errors != [], seconds)
        self.wait_for_rounds(0)

    def _run(self) -> None:
        try:
            while not self._is_ending.is_set():
                try:
                    self._driver.run(1)
                except (AssertionError, OSError, Refused):
                    if not self._goes_on:
                        raise
                    self.given_up += 1
                self._tell()
        except BaseException as error:
            self._errors.append(error)
            self._tell()

    def _tell(self) -> None:
        with self._done:
            self._done.notify_all()


def drive(homeserver: Homeserver, rounds: int, seed: int = 1) -> Driver:
    """So many rounds of users of their own; the driver can be asked for more."""
    driver = Driver(homeserver, seed)
    driver.run(rounds)
    return driver
