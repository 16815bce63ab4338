"""``synrepl tail`` over HTTP: the changelog, by long polls."""

from functools import partial
from typing import Final

import msgspec
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web._newclient import ParseError

from synrepl.cli.output import TailOptions, TailOutput
from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.route import public_url
from synrepl.http_api.routes import STATUS
from synrepl.ports.response_errors import ApiResponseError
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import Backoff, Timer, sleep
from synrepl.storage.position_files import ChangelogPlace
from synrepl.transports.http.client import ChangelogClient
from synrepl.transports.tls import is_permanent, tls_trouble
from synrepl.wire import jsontext

WAIT_SECONDS: Final = 30.0
RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
SAVE_SECONDS: Final = 0.1
STATUS_BYTES: Final = 64 * 1024 * 1024


class _Status(msgspec.Struct):
    """The part of a daemon's status that is checked before its changelog is read."""

    server_name: str
    epoch: int
    serial: int


class _Fact(msgspec.Struct):
    serial: int
    epoch: int
    stream: str
    writer: str
    token: int
    rows: msgspec.Raw


class ChangelogTail:
    """Prints the changelog of a daemon from the position in `options.state`, or else from `options.start`."""

    def __init__(self, output: TailOutput, options: TailOptions) -> None:
        self._output = output
        self._options = options
        self._url = public_url(options.endpoint).rstrip("/")
        self._changelog = ChangelogClient(output.reactor, options.endpoint, secret=options.secret)
        self._tasks = Tasks(Logger(), "tail")
        self._position = options.state.load_place() if options.state is not None else None
        self._save_timer = Timer(output.reactor, self._save)
        self._is_connected = False

    def start(self) -> None:
        """Start reading."""
        self._tasks.start(self._read(), "reading the changelog")

    def stop(self) -> "Deferred[None]":
        """Stop reading, and save the position."""
        self._tasks.cancel_all()
        if self._save_timer.is_active:
            self._save_timer.stop()
            self._save()
        return Deferred.fromCoroutine(self._changelog.stop())

    async def _read(self) -> None:
        backoff = Backoff(RETRY_SECONDS)
        while not self._output.is_ending:
            try:
                if not self._is_connected:
                    await self._connect()
                assert self._position is not None
                streams = list(self._options.streams) or None
                upto = await self._changelog.pages(self._position.serial, streams, WAIT_SECONDS, self._show)
                self._move(ChangelogPlace(max(upto, self._position.serial), self._position.epoch))
                backoff.reset()
            except ApiResponseError as error:
                if error.code == "ahead_of_log":
                    self._output.write_event(
                        "error", message=f"{error}: the log of the daemon is not the one that was read before"
                    )
                    self._output.end(f"{error}; start again, without the --state file if there is one")
                    continue
                if not error.retryable:
                    self._output.end(str(error))
                    return
                await self._pause(error, backoff.next())
            except ReplicationError as error:
                await self._pause(error, backoff.next())

    async def _connect(self) -> None:
        try:
            status = await self._changelog.call(STATUS.request(), _Status, max_bytes=STATUS_BYTES, timeout=10)
        except RemoteProtocolError:
            self._output.end(f"{self._url} does not respond as a synrepl daemon; check TARGET")
            await Deferred()
        except NotConnected as error:
            if not (why := _permanent_failure(error)):
                raise
            self._output.end(f"cannot connect to {self._url}: {why}")
            await Deferred()
        if (expected := self._options.server_name) not in (None, status.server_name):
            self._output.end(f"the server_name is {status.server_name}, expected {expected} (--server-name)")
            await Deferred()
        self._is_connected = True
        self._output.write_event("connected")
        self._output.write_event("server", name=status.server_name)
        if self._position is None:
            serial = 0 if self._options.start == "earliest" else status.serial
            self._move(ChangelogPlace(serial, status.epoch))
        else:
            self._check_epoch(status.epoch)

    def _show(self, text: bytes) -> Deferred[None] | None:
        fact = msgspec.json.decode(text, type=_Fact)
        self._check_epoch(fact.epoch)
        line = {
            "type": "rdata",
            "stream": fact.stream,
            "writer": fact.writer,
            "token": fact.token,
            "serial": fact.serial,
            "rows": jsontext.loads(bytes(fact.rows)),
        }
        if not self._output.write_fact(line):
            return Deferred()  # It never fires: this fact must not count as printed.
        self._move(ChangelogPlace(fact.serial, fact.epoch))
        return None

    def _check_epoch(self, epoch: int) -> None:
        assert self._position is not None
        if epoch != self._position.epoch:
            why = f"the epoch changed from {self._position.epoch} to {epoch}: history may have forked"
            self._output.write_event("error", message=why)
            self._move(ChangelogPlace(self._position.serial, epoch))

    async def _pause(self, error: ReplicationError, seconds: float) -> None:
        self._is_connected = False
        self._output.write_event("disconnected", reason=str(error))
        await sleep(self._output.reactor, seconds)

    def _move(self, position: ChangelogPlace) -> None:
        self._position = position
        if self._options.state is not None:
            self._save_timer.start(SAVE_SECONDS)

    def _save(self) -> None:
        assert self._options.state is not None
        assert self._position is not None
        self._output.save(partial(self._options.state.save_place, self._position))


def _permanent_failure(error: NotConnected) -> str:
    """Return why no retry can succeed; empty if a retry can."""
    cause = error.__cause__
    while reasons := getattr(cause, "reasons", None):
        cause = reasons[0].value
    if isinstance(cause, ParseError):
        return f"it does not speak HTTP ({cause.args[-1]!r}); for the line protocol give host:port, not a URL"
    if isinstance(cause, SSL.Error):
        return tls_trouble(cause) if is_permanent(cause) else ""
    return str(cause) if isinstance(cause, OverflowError) else ""
