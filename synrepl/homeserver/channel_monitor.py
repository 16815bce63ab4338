"""Hears what a homeserver's processes announce on Redis, and publishes nothing unless it is told to ask."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from twisted.internet.defer import Deferred

from synrepl.base.metric_values import Registry
from synrepl.base.metrics import Metrics
from synrepl.base.time import Timer
from synrepl.errors import RowError
from synrepl.homeserver.configuration import RedisSettings
from synrepl.homeserver.looks import Heard, UnreadableRows
from synrepl.replication.follower.facts import decoder, untyped
from synrepl.replication.membership.member import ChannelMember
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.transports.redis.address import RedisAddress, RedisWords
from synrepl.transports.redis.connections import RedisRefused, ask_for_master
from synrepl.transports.redis.link import RedisLink
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import printable

SUBSCRIBE_SECONDS: Final = 3.0
"""So long a subscription is awaited before looks are made without it."""
WORDS: Final = RedisWords(
    missing_login="set redis.password (or redis.password_path) in homeserver.yaml",
    wrong_login="check redis.password (or redis.password_path) in homeserver.yaml",
    needless_login="remove redis.password from homeserver.yaml",
    use_tls="set redis.use_tls to true in homeserver.yaml",
    use_no_tls="set redis.use_tls to false in homeserver.yaml",
    give_ca="set redis.ca_file in homeserver.yaml",
    give_certificate="set redis.certificate_file and redis.private_key_file in homeserver.yaml",
)
"""What a homeserver's configuration calls the settings."""
MAX_WRITERS: Final = 2_000
"""The most writers of streams that are kept: any process on the channel can name some."""


def redis_address(settings: RedisSettings) -> RedisAddress:
    """Return the address in a homeserver's configuration, for our own client."""
    files: dict[str, Any] = {
        name: Path(value)
        for name, value in (
            ("ca_file", settings.ca_file or settings.ca_path),
            ("cert_file", settings.certificate_file),
            ("key_file", settings.private_key_file),
        )
        if value
    }
    if settings.path:
        where: dict[str, Any] = {"scheme": "redis+unix", "path": settings.path}
    else:
        where = {
            "scheme": "rediss" if settings.is_tls else "redis",
            "hosts": ((settings.host, settings.port),),
            "tls": settings.is_tls,
        }
    login: dict[str, Any] = {"username": settings.username, "given_password": settings.password}
    return RedisAddress(**where, **files, **login, words=WORDS)


class Announcement(NamedTuple):
    """What a writer said of a stream: `tokens` (ascending), of so many `rows` or of a position.

    `is_answer`: a position as in an answer to REPLICATE, which says where the writer is. An idle writer that
    moved says from where. `unreadable` are those of its rows that no known release writes.
    """

    stream: str
    writer: str
    tokens: list[int]
    rows: int = 0
    is_answer: bool = False
    unreadable: UnreadableRows | None = None


def announcements(commands: Iterable[Command | RdataRun]) -> Iterator[Announcement]:
    """Yield what was announced, in order, and leave the other commands out."""
    for command in commands:
        match command:
            case RdataRun(stream=stream, instance=writer, tokens=tokens):
                known = [abs(token) for token in tokens if token is not None]
                unreadable = _unreadable(stream, tokens, command.rows)
                yield Announcement(stream, writer, known, rows=len(tokens), unreadable=unreadable)
            case Rdata(stream=stream, instance=writer, token=token):
                unreadable = _unreadable(stream, [token], [command.row])
                known = [] if token is None else [abs(token)]
                yield Announcement(stream, writer, known, rows=1, unreadable=unreadable)
            case Position(stream=stream, instance=writer, prev_token=before, token=token):
                yield Announcement(stream, writer, [abs(token)], is_answer=before == token)


@cache
def _streams() -> StreamTable:
    return StreamTable.default()


def _unreadable(stream: str, tokens: Sequence[int | None], rows: Sequence[bytes]) -> UnreadableRows | None:
    """Return which of these rows cannot be read; None if all can. A batch has its token at its end."""
    known = _streams().get(stream)
    decode = decoder(known or untyped(stream), NEWEST, raw=known is None)
    found: UnreadableRows | None = None
    for at, row in enumerate(rows):
        try:
            decode([row])
        except RowError as error:
            if found is None:
                token = next((token for token in tokens[at:] if token is not None), None)
                found = UnreadableRows(count=1, token=token, why=printable(error.why))
            else:
                found = msgspec.structs.replace(found, count=found.count + 1)
    return found


class ChannelMonitor(ChannelMember):
    """Hears the channel of a homeserver (the member of a `RedisLink`)."""

    def __init__(self, reactor: Any, settings: RedisSettings, server_name: str) -> None:
        self._server_name = server_name
        self._tokens: dict[Writer, int] = {}
        self._answers: list[Counter[Writer]] = []
        self._rows: Counter[Writer] = Counter()
        self._unreadable: dict[Writer, UnreadableRows] = {}
        self._is_up = False
        self._since = float("inf")
        self._clock: Callable[[], float] = reactor.seconds
        self._ready: Deferred[None] = Deferred()
        self._patience = Timer(reactor, self._is_ready)
        self._trouble = "not connected yet"
        self._subscribers: int | None = None
        self._master = ""
        self._link = RedisLink(
            reactor,
            redis_address(settings),
            self,
            server_name=server_name,
            instance="synrepl-inspect",
            metrics=Metrics(Registry()),
            hears=("",),
            only_hears=True,
        )

    @property
    def address(self) -> str:
        """The address for people."""
        return self._link.address.public

    def start(self) -> "Deferred[None]":
        """Begin to listen. Fires once it hears, an attempt has failed, or `SUBSCRIBE_SECONDS` have passed."""
        self._patience.start(SUBSCRIBE_SECONDS)
        self._link.start()
        return self._ready

    def stop(self) -> Any:
        """Stop listening. Fires when the connection is closed."""
        self._patience.stop()
        return self._link.stop()

    async def ask(self) -> None:
        """Publish REPLICATE: each process announces the streams that it writes, as when a process starts.

        Raises `RedisRefused`.
        """
        self._answers.append(Counter())
        await self._link.query("PUBLISH", self._server_name, "REPLICATE ")

    async def query_redis(self) -> None:
        """Ask Redis how many listen on the channel, and for its role; `heard` tells the answers."""
        try:
            match await self._link.query("PUBSUB", "NUMSUB", self._server_name):
                case [_, int(count)]:
                    self._subscribers = count - self._is_up
        except RedisRefused:
            self._subscribers = None
        self._master = (await ask_for_master(self._link.query) or "") if self._is_up else ""

    def heard(self) -> Heard:
        """Everything heard up to now."""
        positions: dict[str, dict[str, int]] = {}
        for (stream, writer), token in self._tokens.items():
            positions.setdefault(stream, {})[writer] = token
        return Heard(
            positions=positions,
            answers={
                key: min(answers[key] for answers in self._answers) for key in set().union(*self._answers)
            },
            asks=len(self._answers),
            rows=dict(self._rows),
            unreadable=dict(self._unreadable),
            subscribers=self._subscribers,
            replica_of=self._master,
            since=self._since,
            trouble=self._trouble,
        )

    # -- what the link calls -------------------------------------------------------------------------------

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Keep the highest token of each stream and writer."""
        for one in announcements(commands):
            # Names are shown to people, and any process on the channel chooses them.
            writer = Writer(printable(one.stream), printable(one.writer))
            if writer not in self._tokens and len(self._tokens) >= MAX_WRITERS:
                continue
            self._tokens[writer] = max(self._tokens.get(writer, -1), *one.tokens, 0)
            if one.rows:
                self._rows[writer] += one.rows
            if one.unreadable is not None:
                first = self._unreadable.get(writer)
                if first is not None:
                    first = msgspec.structs.replace(first, count=first.count + one.unreadable.count)
                self._unreadable[writer] = first or one.unreadable
            if one.is_answer and self._answers:
                self._answers[-1][writer] += 1

    def subscriber_up(self) -> None:
        """Redis has confirmed the subscription."""
        self._is_up, self._trouble = True, ""
        self._since = self._clock()
        self._is_ready()

    def subscriber_down(self, why: str) -> None:
        """The subscription was lost: what was announced meanwhile is not known."""
        self._is_up, self._trouble = False, why
        self._since = float("inf")

    def unreachable(self, why: str) -> None:
        """An attempt to connect failed."""
        self._trouble = why
        self._is_ready()

    def _is_ready(self) -> None:
        self._patience.stop()
        if not self._ready.called:
            self._ready.callback(None)
