"""What Twisted has to say, on the command line: nothing, unless something is broken."""

import sys

from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)

__all__ = ["quiet"]


def quiet() -> None:
    """Show faults on standard error, and nothing else of the log."""
    observer: ILogObserver = FilteringLogObserver(
        textFileLogObserver(sys.stderr), [LogLevelFilterPredicate(LogLevel.critical)]
    )
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
