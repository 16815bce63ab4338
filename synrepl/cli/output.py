"""The output of synrepl tail: lines, saved positions, the log level, and when the command ends."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from twisted.logger import globalLogBeginner

from synrepl.base.time import Timer
from synrepl.cli.json_lines import JsonLines, OutputClosed
from synrepl.daemon.log_output import log_observer
from synrepl.errors import StorageError
from synrepl.storage.position_files import FilePositions
from synrepl.storage.private_files import map_errors
from synrepl.transports.credentials import Credentials
from synrepl.wire.dialect import Dialect


class TailOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a tail follows, and how. `endpoints` are URLs, or Twisted client endpoint strings.

    A position in `state` overrides `start`. Missing rows are fetched from `http`: one URL for all endpoints,
    that of each, or none. It is a guess unless `is_http_known`. `secret` is from `secret_file`; `ca_file` has
    the CAs to trust for HTTPS. `insecure`: the secret may also go where others can read it.
    """

    endpoints: Sequence[str]
    streams: Sequence[str]
    start: Literal["latest", "earliest"]
    state: FilePositions | None
    dialect: Dialect
    name: str
    server_name: str | None
    http: Sequence[str]
    is_http_known: bool
    secret: str | None
    secret_file: Path | None
    ca_file: Path | None
    insecure: bool

    @property
    def credentials(self) -> Credentials:
        """What requests over HTTP authenticate with, and trust."""
        if self.ca_file is None:
            return Credentials(self.secret, insecure=self.insecure)
        from synrepl.transports.tls import TlsFiles  # OpenSSL is large

        return Credentials(self.secret, TlsFiles(ca_file=self.ca_file), insecure=self.insecure)


class TailOutput:
    """Printer of lines that also runs and stops the reactor.

    Lines are written once per reactor iteration, and by `flush` and `save`. The output ends on `end`, when
    standard output is closed, after `exit_after` facts, or with an error after `patience` seconds without a
    connection; None means no limit. `error` is the line the command fails with, empty if it succeeds.
    """

    def __init__(
        self, reactor: Any, lines: JsonLines, *, exit_after: int | None, patience: float | None = None
    ) -> None:
        self.reactor = reactor
        self._patience = patience
        self._patience_timer = Timer(reactor, lambda: self.end(f"no connection: {self._why}"))
        self._why = "the server does not respond"
        self.error = ""
        self.is_ending = False
        self._lines = lines
        self._left = exit_after
        self._is_closed = False

    def write_event(self, kind: str, **fields: Any) -> None:
        """Print a line of the type `kind`."""
        self.write({"type": kind, **fields})
        if kind == "connected":
            self._patience_timer.stop()
        elif kind == "disconnected":
            self._why = str(fields.get("reason") or self._why)
            self._expect_connection()

    def _expect_connection(self) -> None:
        if self._patience is not None and not self._patience_timer.is_active:
            self._patience_timer.start(self._patience)

    def write(self, line: Mapping[str, Any]) -> None:
        """Print a line."""
        if not self._lines:
            self.reactor.callLater(0, self.flush)
        self._lines.add(line)

    def write_fact(self, line: Mapping[str, Any]) -> bool:
        """Print a fact. Return False if `exit_after` facts were printed before: this one is not printed."""
        if self._left is not None:
            if self._left <= 0:
                return False
            self._left -= 1
            if not self._left:
                self.end()
        self.write(line)
        return True

    def flush(self) -> bool:
        """Write all lines to standard output. Return False if standard output is closed."""
        if self._is_closed:
            return False
        try:
            self._lines.flush()
        except OutputClosed:
            self._is_closed = True
            self.end()
            return False
        return True

    def save(self, write: Callable[[], None]) -> None:
        """Print all lines, then call `write` to save their position; if that fails, end with its error.

        Lines in a file are synced first: a position that survives a power cut is never beyond them.
        """
        if self.flush():
            try:
                with map_errors("sync the output"):
                    self._lines.sync()
                write()
            except StorageError as error:
                self.end(str(error))

    def end(self, error: str = "") -> None:
        """Finish; with `error`, the command fails with that line."""
        self.error = self.error or error
        if not self.is_ending:
            self.is_ending = True
            self.reactor.callWhenRunning(self._stop)

    def run(self, start: Callable[[], None], stop: Callable[[], Any]) -> None:
        """Run the reactor. Call `start` first, and `stop` when the reactor ends, by a signal or by itself."""
        self.reactor.callWhenRunning(start)
        if self._patience:
            self.reactor.callWhenRunning(self._expect_connection)
        self.reactor.addSystemEventTrigger("before", "shutdown", stop)
        self.reactor.run()
        self.flush()

    def _stop(self) -> None:
        if self.reactor.running and not self.reactor._stopped:
            self.reactor.stop()


def quiet() -> None:
    """Log critical events to standard error, and drop all others."""
    observer = log_observer(None, form="text", level="critical")
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
