"""Reports to systemd: readiness, status, reloads, the stop and the watchdog, as `sd_notify(3)` specifies."""

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

from twisted.logger import Logger

from synrepl.daemon.service import Daemon
from synrepl.ports.interfaces import IClock
from synrepl.ports.time import Timer

__all__ = ["Systemd"]

REPORT_SECONDS: Final = 1.0
"""Seconds between two reports. The watchdog may shorten them."""

EXTEND_SECONDS: Final = 60
"""Seconds by which a replica without a complete copy extends its start, with each report."""


class Systemd:
    """Reports the state of a daemon to the service manager that started this process.

    A primary is ready when its ports are open; a replica is ready when it also has a complete copy. The
    watchdog is notified from the reactor, so that systemd restarts a daemon whose reactor hangs. Without
    `NOTIFY_SOCKET` in `environ` nothing is sent.
    """

    _logger = Logger()

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
                self._is_ready = self._daemon.has_copy
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
