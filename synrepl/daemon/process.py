"""The process around a daemon: signals, log files, limits and the exit code."""

import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from twisted.logger import ILogObserver, LogEvent, Logger, globalLogPublisher
from twisted.python.logfile import BaseLogFile
from zope.interface import implementer

from synrepl.config import Settings
from synrepl.daemon.service import Daemon
from synrepl.daemon.systemd import Systemd
from synrepl.errors import ConfigError

__all__ = ["exit_with_failure", "prepare_process"]

MAX_DESCRIPTORS: Final = 65_536

_logger = Logger(namespace="synrepl.process")


def prepare_process(daemon: Daemon, reactor: Any, read: Callable[[], Settings]) -> None:
    """Prepare this process for a daemon.

    On SIGHUP the log files are reopened and the settings that `read` returns are applied. An unhandled
    MemoryError ends the process. The limit of file descriptors is raised. systemd is notified, if it started
    this process.
    """
    systemd = Systemd(daemon, reactor)
    reactor.callWhenRunning(systemd.start)
    reactor.addSystemEventTrigger("before", "shutdown", systemd.stopping)
    reactor.callWhenRunning(_handle_signals, reactor, daemon, read, systemd)
    globalLogPublisher.addObserver(_exit_on_memory_error)
    _raise_descriptor_limit()


def _handle_signals(reactor: Any, daemon: Daemon, read: Callable[[], Settings], systemd: Systemd) -> None:
    """Reload on SIGHUP. Ignore SIGUSR1 and SIGUSR2, unless twistd uses the signal to rotate its log."""

    def reload(number: int, frame: Any) -> None:
        reactor.callFromThread(_reload, daemon, read, systemd)

    signal.signal(signal.SIGHUP, reload)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


@implementer(ILogObserver)
def _exit_on_memory_error(event: LogEvent) -> None:
    """Exit at once after an unhandled MemoryError: the code that it interrupted is unknown.

    All acknowledged facts are on disk, and a supervisor restarts the daemon.
    """
    failure = event.get("log_failure")
    if failure is not None and failure.check(MemoryError):
        _logger.critical("out of memory: the daemon exits; give it more memory, or reduce --max-body-bytes")
        exit_with_failure()


def _raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to the hard limit: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _reload(daemon: Daemon, read: Callable[[], Settings], systemd: Systemd) -> None:
    """Reopen the log files, which logrotate has moved, and apply the current settings."""
    systemd.reloading()
    # Twisted keeps no list of its log files.
    for found in gc.get_objects():
        if isinstance(found, BaseLogFile) and not found.closed:
            found.reopen()
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
