"""Entry point of `twistd synrepl` and `twist synrepl`: options, settings and the daemon's service."""

import atexit
import sys
from pathlib import Path
from typing import Any, Final

from twisted.application.service import IService
from twisted.python import usage

from synrepl.config import Settings, settings
from synrepl.errors import ConfigError, suggest
from synrepl.missing_rooms import why_missing

LISTS: Final = frozenset(one.flag for one in settings() if one.kind == "list")
"""The flags that may be repeated."""


class Options(usage.Options):
    """A flag for each setting but those of the file alone. A flag's default would hide the file's value."""

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
            if one.kind in ("value", "list")
        ),
    ]
    optFlags = [[one.flag, None, one.help] for one in settings() if one.kind == "switch"]

    def __init__(self) -> None:
        super().__init__()
        self.settings: Settings | None = None
        self._flags: dict[str, Any] = {}
        self._file: Path | None = None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in LISTS:
            value = [*(self.get(name) or ()), value]
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
        for one in settings():
            given = self.get(one.flag)
            if given is not None and (one.kind != "switch" or given):
                self._flags[one.name] = True if one.kind == "switch" else given
        # Absolute: a detached daemon has another working directory when it reads the file again.
        self._file = Path(self["config"]).absolute() if self["config"] else None
        try:
            self.settings = self.read()
        except ConfigError as error:
            raise usage.UsageError(str(error)) from error

    def read(self) -> Settings:
        """Read the settings from the flags and the current file. Raises `ConfigError`."""
        return Settings.build(self._flags, file=self._file)


def makeService(options: Options) -> IService:
    """Return the daemon's service, not yet started."""
    # Late: the import of the reactor installs it, which is for twistd to do.
    from twisted.internet import reactor

    from synrepl.daemon.process import exit_with_failure, prepare_process
    from synrepl.daemon.service import Daemon

    assert options.settings is not None

    def failed() -> None:
        reactor.callWhenRunning(reactor.stop)

    daemon = Daemon(options.settings, reactor, on_failure=failed)
    # twistd and twist would exit with code 0 after a failure; neither accepts an exit code.
    atexit.register(lambda: exit_with_failure() if daemon.failure else None)
    prepare_process(daemon, reactor, options.read)
    return daemon


def _add_suggestion(message: str) -> str:
    words = message.split()
    given = next((word.lstrip("-") for word in words if word.startswith("--")), "")
    if "not recognized" not in message or not given:
        return message
    if why := why_missing("settings", given.partition("=")[0].replace("-", "_")):
        return f"{message}; {why}"
    return message + suggest(given, [one.flag for one in settings() if one.kind != "file"])
