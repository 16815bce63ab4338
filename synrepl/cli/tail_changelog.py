"""``synrepl tail`` over HTTP: the changelog, by long polls."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web._newclient import ParseError

from synrepl.base.tasks import Tasks
from synrepl.base.time import Backoff, Timer, sleep
from synrepl.cli.options import secret_advice
from synrepl.cli.output import TailOptions, TailOutput
from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import public_url
from synrepl.http_api.routes import STATUS
from synrepl.storage.position_files import ChangelogPlace
from synrepl.streams.facts import says_lost
from synrepl.transports.http.changelog_client import FirstAnswer, read_changelog
from synrepl.transports.http.http_client import HttpClient, decode_json
from synrepl.transports.tls import is_permanent, tls_trouble
from synrepl.wire.address_list import AddressList, Fault

WAIT_SECONDS: Final = 30.0
BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
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
    prev_token: int
    token: int
    rows: msgspec.Raw
    digest: str = ""


class ChangelogTail:
    """Prints the changelog of daemons of one log, from the position in `options.state` or `options.start`.

    It reads from one daemon at a time (`AddressList`). A daemon whose log lacks a fact that was printed, as
    its epochs show, ends the tail with an error.
    """

    def __init__(self, output: TailOutput, options: TailOptions) -> None:
        self._output = output
        self._options = options
        self._addresses = AddressList(options.endpoints)
        self._backoff = Backoff(BACKOFF_SECONDS)
        self._names = {public_url(one).rstrip("/"): one for one in options.endpoints}
        self._http = HttpClient(output.reactor, options.endpoints[0], secret=options.credentials)
        self._epoch = 0
        """The epoch of the daemon's log when its last answer began."""
        self._tasks = Tasks(Logger(), "tail")
        self._position = options.state.load_place() if options.state is not None else None
        self._save_timer = Timer(output.reactor, self._save)
        self._is_connected = False
        self._is_first = False
        """Whether the log is read from its beginning, and that has not come to its end yet."""

    def start(self) -> None:
        """Start reading."""
        self._tasks.start(self._read(), "reading the changelog")

    def stop(self) -> "Deferred[None]":
        """Stop reading, and save the position."""
        self._tasks.cancel_all()
        if self._save_timer.is_active:
            self._save_timer.stop()
            self._save()
        return Deferred.fromCoroutine(self._http.stop())

    @property
    def _url(self) -> str:
        return public_url(self._addresses.current).rstrip("/")

    @property
    def _serial(self) -> int:
        return self._position.serial if self._position is not None else 0

    async def _read(self) -> None:
        while not self._output.is_ending:
            try:
                if not self._is_connected:
                    await self._connect()
                await self._read_page()
                self._addresses.succeeded()
                self._backoff.reset()
            except HttpError as error:
                has_others = len(self._names) > 1
                if error.code == "fork" or (error.code == "ahead_of_log" and not has_others):
                    self._output.write_event(
                        "error",
                        message=f"{error}: the log of the daemon is not the one that was read before, and"
                        " lacks facts that were printed",
                    )
                    self._output.end(f"{error}; start again, without the --state file if there is one")
                    continue
                if error.code == "trimmed":
                    self._output.end(
                        f"{self._url}: the log no longer has the facts after serial {self._serial}: it was"
                        f" trimmed up to serial {error.body.get('trimmed_upto', 'unknown')}; to begin with"
                        " what remains of them (the newest row of each key), start again without the --state"
                        " file, with --from earliest; to leave them out, with --from latest"
                    )
                    return
                fault = error.fault
                if error.code == "ahead_of_log":
                    fault = Fault.NOT_READY  # of the same epoch, but behind: it may catch up, or be promoted
                elif not error.retryable and not (has_others and error.can_try_elsewhere):
                    advice = secret_advice(self._options.secret_file)
                    self._output.end(f"{self._url}: {advice}" if error.code == "unauthorized" else str(error))
                    return
                await self._pause(error, fault, error.moved_to.split())
            except RemoteProtocolError as error:
                self._output.end(f"{self._url} does not respond as a synrepl daemon; check TARGET ({error})")
                return
            except ReplicationError as error:
                await self._pause(error, Fault.UNREACHABLE)

    async def _read_page(self) -> None:
        position = self._position
        assert position is not None
        streams = list(self._options.streams) or None
        upto = await read_changelog(
            self._http,
            position.serial,
            streams,
            WAIT_SECONDS,
            self._show,
            on_begin=self._begin,
            epoch=position.epoch,
            digest=position.digest or None,
            compacted=self._is_first or None,
        )
        self._is_first = False
        assert self._position is not None
        if upto > self._position.serial:
            self._move(ChangelogPlace(upto, max(self._epoch, self._position.epoch)))

    def _begin(self, head: FirstAnswer) -> None:
        self._epoch = head.epoch

    async def _connect(self) -> None:
        try:
            status = await self._http.call(STATUS.request(), _Status, max_bytes=STATUS_BYTES, timeout=10)
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
            self._is_first = self._options.start == "earliest"
            serial = 0 if self._is_first else status.serial
            self._move(ChangelogPlace(serial, status.epoch if serial else 1))

    def _show(self, text: bytes) -> Deferred[None] | None:
        fact = decode_json(_Fact, text, self._url)
        if says_lost(fact.prev_token, fact.token, bytes(fact.rows)):
            why = f"the daemon has lost what {fact.writer} wrote to {fact.stream} up to token {fact.token}"
            where = {"stream": fact.stream, "writer": fact.writer, "token": fact.token}
            self._output.write_event("error", message=why, **where)
        line = {
            "type": "rdata",
            "stream": fact.stream,
            "writer": fact.writer,
            "token": fact.token,
            "serial": fact.serial,
            "rows": decode_json(list[Any], bytes(fact.rows), self._url),
        }
        if not self._output.write_fact(line):
            return Deferred()  # It never fires: this fact must not count as printed.
        self._move(ChangelogPlace(fact.serial, fact.epoch, fact.digest))
        return None

    async def _pause(self, error: ReplicationError, fault: Fault, moved_to: Sequence[str] = ()) -> None:
        self._is_connected = False
        self._output.write_event("disconnected", address=self._url, reason=str(error))
        named = [self._names[url.rstrip("/")] for url in moved_to if url.rstrip("/") in self._names]
        is_new_round = self._addresses.failed(fault, moved_to=named)
        self._http.base_url = self._addresses.current.rstrip("/")
        await sleep(self._output.reactor, self._backoff.next() if is_new_round else 0.0)

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
        if b"SERVER " in cause.args[-1]:
            return "this is the port of the line protocol: give host:port, not a URL, or the port of HTTP"
        return "it does not speak HTTP: check the port"
    if isinstance(cause, SSL.Error):
        return tls_trouble(cause) if is_permanent(cause) else ""
    return str(cause) if isinstance(cause, OverflowError) else ""
