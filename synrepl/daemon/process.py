"""The process around a daemon: signals, log files, limits, the exit code, and reports to systemd."""

import faulthandler
import gc
import mmap
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.logger import ILogObserver, LogEvent, Logger, globalLogPublisher
from zope.interface import implementer

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.config import Settings
from synrepl.daemon.clock_steps import keep_steady
from synrepl.daemon.log_output import reopen_log_files
from synrepl.daemon.service import Daemon
from synrepl.daemon.turn_meter import measure_turns
from synrepl.errors import ConfigError

MAX_DESCRIPTORS: Final = 65_536

REPORT_SECONDS: Final = 1.0
"""Seconds between two reports to systemd; half of the watchdog's timeout if that is shorter."""

EXTEND_SECONDS: Final = 60
"""Seconds by which a daemon that is not ready yet extends its start, with each report."""

OUT_OF_MEMORY: Final = b"out of memory: the daemon exits; give it more memory, or reduce --max-body-bytes\n"

STDERR: Final = 2

RESERVED_BYTES: Final = 2 * 1024 * 1024
"""Two of the pieces in which Python takes memory for small objects."""

_reserve: list[mmap.mmap] = []
"""Memory that is freed for the last lines: without any, CPython itself may crash.

It is mapped and never touched. That takes none, but counts where memory can end with a MemoryError: in the
limits of this process, and in what the kernel has promised if it promises no more than it has.
"""

_logger = Logger(namespace="synrepl.process")


COLLECTOR_THRESHOLDS: Final = (5_000, 10, 1_000)
"""When the garbage collector runs: a full collection, which looks through what all peers have made, takes up
to 100 ms of a turn in a large daemon. It is rare: cycles mostly die young, and are found by the others.
"""


def prepare_process(daemon: Daemon, reactor: Any, read: Callable[[], Settings]) -> None:
    """Prepare this process for a daemon.

    On SIGHUP the log files are reopened, and the secrets, keys and certificates that `read` returns are
    applied; SIGUSR1 and SIGUSR2 do not end the process. Once the daemon is ready, the garbage collector no
    longer looks through what the start has made. A MemoryError that nothing handled ends the process. A crash
    in a C library leaves the Python stack on standard error. The limit of file descriptors is raised. systemd
    is notified, if it started this process. The reactor ignores steps of the clock that are soon taken back.
    Its turns are measured from the time the daemon is ready: nobody waits for those before.
    """
    systemd = Systemd(daemon, reactor)
    reactor.callWhenRunning(systemd.start)
    reactor.addSystemEventTrigger("before", "shutdown", systemd.stopping)
    reactor.callWhenRunning(_handle_signals, reactor, daemon, read, systemd)
    _handle_fatal_errors()
    _raise_descriptor_limit()
    keep_steady(reactor)
    measure_turns(reactor, daemon.metrics.turns)
    daemon.ready.addCallback(lambda _: _begin_service(daemon))


def _begin_service(daemon: Daemon) -> None:
    """Keep turns short from now on, and count them."""
    # What the start has made stays. The garbage collector would look through all of it now and then: 50 ms.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    daemon.metrics.turns.restart()


def _handle_signals(reactor: Any, daemon: Daemon, read: Callable[[], Settings], systemd: "Systemd") -> None:
    """Reload on SIGHUP. Ignore SIGUSR1 and SIGUSR2, unless twistd uses the signal to rotate its log."""

    def reload(number: int, frame: Any) -> None:
        reactor.callFromThread(_reload, daemon, read, systemd)

    signal.signal(signal.SIGHUP, reload)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


def _handle_fatal_errors() -> None:
    """End the process after a MemoryError that nothing handled: the code that it interrupted is unknown.

    All acknowledged facts of kept streams are on disk, and a supervisor restarts the daemon.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(STDERR)
    _reserve.append(mmap.mmap(-1, RESERVED_BYTES, flags=mmap.MAP_PRIVATE))
    # Twisted logs what callbacks and coroutines raise; the hooks get the rest.
    globalLogPublisher.addObserver(_exit_on_logged_memory_error)
    sys.excepthook = _exiting(sys.excepthook)
    threading.excepthook = _exiting(threading.excepthook)
    sys.unraisablehook = _exiting(sys.unraisablehook)


@implementer(ILogObserver)
def _exit_on_logged_memory_error(event: LogEvent) -> None:
    # The reactor logs in the old way what a connection's read or write raises.
    failure = event.get("log_failure") or event.get("failure")
    # Not `failure.check`, which needs memory.
    if failure is not None and isinstance(failure.value, MemoryError):
        _exit_without_memory()


def _exiting(hook: Callable[..., Any]) -> Callable[..., None]:
    """Return a hook of `sys` or `threading` that exits on a MemoryError, and passes on other exceptions."""

    def exit_or_pass_on(*arguments: Any) -> None:
        # `sys.excepthook` gets the type first, the other hooks an object with it.
        type_ = getattr(arguments[0], "exc_type", arguments[0])
        if issubclass(type_, MemoryError):
            _exit_without_memory()
        hook(*arguments)

    return exit_or_pass_on


def _exit_without_memory() -> None:
    if not _reserve:
        # The log's line, below, failed for lack of memory too.
        os._exit(1)
    _reserve.pop().close()
    try:
        # First, and as bytes made at the start: a line of the log needs memory that may be missing.
        os.write(STDERR, OUT_OF_MEMORY)
        _logger.critical("{text}", text=OUT_OF_MEMORY.decode().strip())
    finally:
        os._exit(1)


def _raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to the hard limit: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _reload(daemon: Daemon, read: Callable[[], Settings], systemd: "Systemd") -> None:
    """Reopen the log files, which logrotate has moved, and apply the current secrets and certificates."""
    systemd.reloading()
    reopen_log_files(globalLogPublisher)
    try:
        daemon.reload(read())
    except ConfigError as error:
        _logger.error("cannot reload on SIGHUP, the old settings remain: {why}", why=str(error))
    systemd.reloaded()


def exit_with_failure() -> None:
    """Exit with code 1 at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


class Systemd:
    """Reports the state of a daemon to systemd, if that started this process, as `sd_notify(3)` specifies.

    A primary is ready when its ports are open. A replica is ready when it also has a complete copy, and has
    compared that with its upstream, or says in its status why it cannot: a start does not wait for an
    upstream that is away. The watchdog is notified from the reactor, so that systemd restarts a daemon whose
    reactor hangs. Without `NOTIFY_SOCKET` in `environ` nothing is sent.
    """

    _logger = Logger(namespace="synrepl.daemon.systemd")

    def __init__(self, daemon: Daemon, clock: IClock, environ: Mapping[str, str] = os.environ) -> None:
        self._daemon = daemon
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._watchdog = _watchdog_seconds(environ)
        self._timer = Timer(clock, self._report)
        self._is_ready = False
        self._is_stopping = False
        self._status = ""

    def start(self) -> None:
        """Begin to report."""
        if self._address:
            self._report()

    def reloading(self) -> None:
        """Report that the settings are being reloaded; `reloaded` must follow."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Report the end of a reload."""
        if self._is_ready:
            self._send("READY=1")

    def stopping(self) -> None:
        """Report that the daemon stops. The reports for the watchdog go on until the process ends."""
        self._is_stopping = True
        self._send("STOPPING=1", "STATUS=" + (self._daemon.failure or "stopping"))

    def _report(self) -> None:
        lines = []
        if not self._is_stopping:
            status = " ".join(self._daemon.describe().split())
            if status != self._status:
                self._status = status
                lines.append(f"STATUS={status}")
            if not self._is_ready:
                self._is_ready = self._daemon.has_started
                extended = f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}"
                lines.append("READY=1" if self._is_ready else extended)
        if self._watchdog:
            lines.append("WATCHDOG=1")
        self._send(*lines)
        self._timer.start(min(REPORT_SECONDS, self._watchdog / 2 or REPORT_SECONDS))

    def _send(self, *lines: str) -> None:
        """Send assignments. Never blocks; a report that cannot be sent is lost."""
        if not (self._address and lines):
            return
        # A leading @ stands for the zero byte of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.setblocking(False)
            try:
                notify.sendto("\n".join(lines).encode("utf-8", "replace"), address)
            except OSError as error:
                self._logger.warn("cannot report to systemd: {why}", why=error.strerror)


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """The watchdog's timeout in seconds; 0 without one, or if it watches another process."""
    usec = environ.get("WATCHDOG_USEC", "")
    is_mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(usec) / 1e6 if is_mine and usec.isascii() and usec.isdigit() else 0.0
