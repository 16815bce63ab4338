"""What `twistd synrepl` and `twist synrepl` run: flags to settings, settings to the daemon."""

import atexit
import gc
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twisted.application.service import IService
from twisted.logger import ILogObserver, LogEvent, Logger, globalLogPublisher
from twisted.python import usage
from twisted.python.logfile import BaseLogFile
from zope.interface import implementer

from synrepl.config import Settings, settings, suggest
from synrepl.errors import ConfigError

if TYPE_CHECKING:
    from synrepl.daemon.service import Daemon

__all__ = ["Options", "makeService"]

MAX_DESCRIPTORS: Final = 65_536

_logger = Logger(namespace="synrepl.process")


class Options(usage.Options):
    """The flags, one for each setting; none has a default of its own, so that a file can say otherwise."""

    synopsis = "[options]"
    longdesc = (
        "Keeps a durable log of replication streams and serves it to followers, live and from any position."
    )
    optParameters = [
        [
            "config",
            "c",
            None,
            "A YAML file with settings, by the names of the flags with _ for -; flags win.",
        ],
        *(
            [one.flag, None, None, f"{one.help} [default: {one.default_text}]"]
            for one in settings()
            if one.kind == "value"
        ),
    ]
    optFlags = [[one.flag, None, one.help] for one in settings() if one.kind == "switch"]

    def __init__(self) -> None:
        super().__init__()
        self.listen: list[str] = []
        self.follow: list[str] = []
        self.settings: Settings | None = None
        self._flags: dict[str, Any] = {}
        self._file: Path | None = None

    def opt_listen(self, endpoint: str) -> None:
        """Where followers connect: a Twisted server endpoint string. May be repeated."""
        self.listen.append(endpoint)

    def opt_follow(self, endpoint: str) -> None:
        """A server to take streams from. May be repeated."""
        self.follow.append(endpoint)

    opt_listen.__doc__, opt_follow.__doc__ = (
        f"{one.help} [default: {one.default_text}]" for one in settings() if one.kind == "list"
    )

    def __setitem__(self, name: str, value: Any) -> None:
        # Twisted keeps the last of several values, in silence.
        if name == "upstream" and (before := self.get(name)) is not None:
            raise usage.UsageError(
                f"--upstream is given twice, as {_public(before)} and {_public(value)}: a replica follows one"
                " daemon; name the one to follow"
            )
        super().__setitem__(name, value)

    def opt_version(self) -> None:
        """Show the version, and exit."""
        from importlib.metadata import version

        print(f"synrepl {version('synrepl')}")  # noqa: T201  # asked for
        sys.exit(0)

    def parseOptions(self, options: Any = None) -> None:
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            raise usage.UsageError(_with_nearest(str(error))) from error

    def parseArgs(self, *extra: str) -> None:
        if extra:
            raise usage.UsageError(f"{extra[0]!r} is no option: options begin with --")

    def postOptions(self) -> None:
        flags: dict[str, Any] = {}
        for one in settings():
            if one.kind == "value" and self[one.flag] is not None:
                flags[one.name] = self[one.flag]
            elif one.kind == "switch" and self[one.flag]:
                flags[one.name] = True
        for name in ("listen", "follow"):
            if given := getattr(self, name):
                flags[name] = given
        self._flags = flags
        # Absolute, as a daemon that detaches works in another directory when it reads the file again.
        self._file = Path(self["config"]).absolute() if self["config"] else None
        try:
            self.settings = self.read()
        except ConfigError as error:
            raise usage.UsageError(str(error)) from error

    def read(self) -> Settings:
        """The settings as flags and files say them now. Raises `ConfigError`."""
        return Settings.build(self._flags, file=self._file)


def makeService(options: Options) -> IService:
    """The daemon, ready to be started."""
    from twisted.internet import reactor

    from synrepl.daemon.service import Daemon

    assert options.settings is not None

    def failed() -> None:
        # Neither twistd nor twist has a way to be told an exit code; theirs would be 0.
        atexit.register(_exit_in_trouble)
        reactor.callWhenRunning(reactor.stop)

    daemon = Daemon(options.settings, reactor, on_failure=failed)
    reactor.callWhenRunning(_handle_signals, reactor, daemon, options)
    globalLogPublisher.addObserver(_end_without_memory)
    _raise_descriptor_limit()
    return daemon


def _handle_signals(reactor: Any, daemon: "Daemon", options: Options) -> None:
    """SIGHUP reloads; SIGUSR1 and SIGUSR2 do nothing, unless twistd has taken one to rotate its log."""

    def reload(number: int, frame: Any) -> None:
        reactor.callFromThread(_reload, daemon, options)

    signal.signal(signal.SIGHUP, reload)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


@implementer(ILogObserver)
def _end_without_memory(event: LogEvent) -> None:
    """End at once after a MemoryError that no request was answered for: what it has interrupted is not known.

    All that was acknowledged is on disk, and a supervisor starts the daemon again.
    """
    failure = event.get("log_failure")
    if failure is not None and failure.check(MemoryError):
        _logger.critical("out of memory: the daemon ends; give it more, or set a smaller --max-body-bytes")
        _exit_in_trouble()


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system lets this user have: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _reload(daemon: "Daemon", options: Options) -> None:
    """Open log files anew (logrotate has moved them), and take what the settings say now."""
    # Twisted keeps no list of its log files.
    for found in gc.get_objects():
        if isinstance(found, BaseLogFile) and not found.closed:
            found.reopen()
    try:
        daemon.reload(options.read())
    except ConfigError as error:
        _logger.error("SIGHUP: nothing is changed: {why}", why=str(error))


def _exit_in_trouble() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _public(url: str) -> str:
    """A URL without user and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _with_nearest(message: str) -> str:
    words = message.split()
    given = next((word.lstrip("-") for word in words if word.startswith("--")), "")
    if "not recognized" not in message or not given:
        return message
    return message + suggest(given, [one.flag for one in settings() if one.kind != "file"])
