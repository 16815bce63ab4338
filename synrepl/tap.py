"""Entry point of `twistd synrepl` and `twist synrepl`: options, settings and the daemon's service."""

import atexit
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.application.service import IService
from twisted.python import usage

from synrepl.config import Settings, settings
from synrepl.errors import ConfigError, suggest
from synrepl.http_api.route import public_url
from synrepl.ports.settings import Setting

__all__ = ["Options", "makeService"]


class Options(usage.Options):
    """The flags, one per setting. A flag has no default, so that it does not override the file."""

    synopsis = "[options]"
    longdesc = (
        "Keeps a durable log of replication streams, and serves it to followers live and from any position."
    )
    optParameters = [
        [
            "config",
            "c",
            None,
            "A YAML file with settings, named like the flags with _ in place of -. Flags override the file.",
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
        self.settings: Settings | None = None
        self._flags: dict[str, Any] = {}
        self._lists: dict[str, list[str]] = defaultdict(list)
        self._file: Path | None = None

    def __setitem__(self, name: str, value: Any) -> None:
        # Twisted keeps the last of several values without a warning.
        if name == "upstream" and (before := self.get(name)) is not None:
            raise usage.UsageError(
                f"--upstream is given twice, as {public_url(before)} and {public_url(value)}: a replica"
                " follows one daemon; remove one of the two"
            )
        super().__setitem__(name, value)

    def opt_version(self) -> None:
        """Show the version and exit."""
        from importlib.metadata import version  # late: a running daemon has no use for its 0.4 MiB

        print(f"synrepl {version('synrepl')}")  # noqa: T201  # the purpose of --version
        sys.exit(0)

    def parseOptions(self, options: Any = None) -> None:
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            why = _add_suggestion(str(error))
            if self.parent is None:
                raise usage.UsageError(why) from error
            # twistd and twist would print every option on standard output, and the mistake last.
            print(f"Error: {why}; see {Path(sys.argv[0]).name} synrepl --help", file=sys.stderr)  # noqa: T201
            sys.exit(1)

    def parseArgs(self, *extra: str) -> None:
        if extra:
            raise usage.UsageError(f"unexpected argument {extra[0]!r}: options begin with --")

    def postOptions(self) -> None:
        flags: dict[str, Any] = dict(self._lists)
        for one in settings():
            if one.kind == "value" and self[one.flag] is not None:
                flags[one.name] = self[one.flag]
            elif one.kind == "switch" and self[one.flag]:
                flags[one.name] = True
        self._flags = flags
        # Absolute: a detached daemon has another working directory when it reads the file again.
        self._file = Path(self["config"]).absolute() if self["config"] else None
        try:
            self.settings = self.read()
        except ConfigError as error:
            raise usage.UsageError(str(error)) from error

    def read(self) -> Settings:
        """Read the settings from the flags and the current file. Raises `ConfigError`."""
        return Settings.build(self._flags, file=self._file)


def _repeatable(one: Setting) -> Callable[[Options, str], None]:
    """Return the method of `Options` that adds a value to a list."""

    def add(self: Options, value: str) -> None:
        self._lists[one.name].append(value)

    add.__doc__ = f"{one.help} [default: {one.default_text}]"
    return add


for _one in settings():
    if _one.kind == "list":
        setattr(Options, f"opt_{_one.name}", _repeatable(_one))


def makeService(options: Options) -> IService:
    """Return the daemon's service, not yet started."""
    # Late: the import of the reactor installs it, which is for twistd to do.
    from twisted.internet import reactor

    from synrepl.daemon.process import exit_with_failure, prepare_process
    from synrepl.daemon.service import Daemon

    assert options.settings is not None

    def failed() -> None:
        # twistd and twist would exit with code 0; neither accepts an exit code.
        atexit.register(exit_with_failure)
        reactor.callWhenRunning(reactor.stop)

    daemon = Daemon(options.settings, reactor, on_failure=failed)
    prepare_process(daemon, reactor, options.read)
    return daemon


def _add_suggestion(message: str) -> str:
    words = message.split()
    given = next((word.lstrip("-") for word in words if word.startswith("--")), "")
    if "not recognized" not in message or not given:
        return message
    return message + suggest(given, [one.flag for one in settings() if one.kind != "file"])
