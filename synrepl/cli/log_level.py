"""Log level of the command line: critical only."""

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
    """Log critical events to standard error, and drop all others."""
    observer: ILogObserver = FilteringLogObserver(
        textFileLogObserver(sys.stderr), [LogLevelFilterPredicate(LogLevel.critical)]
    )
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
