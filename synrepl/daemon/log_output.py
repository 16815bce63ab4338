"""The log of `synrepl serve`: text or JSON, on standard error or in a file."""

import sys
from pathlib import Path
from typing import IO, Any, Final, cast

from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    LogEvent,
    LogLevel,
    LogLevelFilterPredicate,
    LogPublisher,
    eventAsText,
    formatEvent,
    formatTime,
    textFileLogObserver,
)
from twisted.python.logfile import BaseLogFile, LogFile

from synrepl.errors import ConfigError
from synrepl.wire import jsontext

FILE_MODE: Final = 0o640

LOGGERS: Final = {"log_legacy": "twisted"}
"""The names of loggers that say nothing to an operator: Twisted's lines of its old log system."""


def log_observer(path: Path | None, *, form: str, level: str) -> ILogObserver:
    """Make the observer that writes events of this level and above to a file, or to standard error.

    `form` is ``text`` or ``json``; `level` is a name of Twisted's levels. SIGHUP reopens the file. Raises
    `ConfigError` if the file cannot be opened.
    """
    out = sys.stderr if path is None else _open(path)
    observer = textFileLogObserver(out) if form == "text" else FileLogObserver(out, format_json)
    filtered: ILogObserver = FilteringLogObserver(
        observer, [LogLevelFilterPredicate(LogLevel.levelWithName(level))]
    )
    return filtered


def reopen_log_files(publisher: LogPublisher) -> None:
    """Reopen the files that the observers of this publisher write, since logrotate may have moved them.

    Of `synrepl serve` and of `twistd --logfile` alike: both give an observer to Twisted, which is asked here
    for its file, as twistd gives the file to nobody else.
    """
    for observer in publisher._observers:
        inner = observer._observer if isinstance(observer, FilteringLogObserver) else observer
        file = getattr(inner, "_outFile", None)
        if isinstance(file, BaseLogFile):
            file.reopen()


def format_json(event: LogEvent) -> str:
    """Format an event as a JSON object on a line: time, level, logger, message, and a traceback if any."""
    line: dict[str, Any] = {
        "time": formatTime(event.get("log_time")),
        "level": getattr(event.get("log_level"), "name", "info"),
        "logger": LOGGERS.get(event.get("log_namespace", ""), event.get("log_namespace", "")),
        "message": formatEvent(event),
    }
    if "log_failure" in event:
        text = eventAsText(event, includeTimestamp=False, includeSystem=False)
        line["traceback"] = text.removeprefix(line["message"]).lstrip("\n")
    return jsontext.dumps(line).decode() + "\n"


def _open(path: Path) -> IO[Any]:
    try:
        found = LogFile(path.name, str(path.parent.absolute()), rotateLength=None, defaultMode=FILE_MODE)
    except OSError as error:
        raise ConfigError(f"cannot open --log-file {path}: {error.strerror}") from error
    return cast("IO[Any]", found)  # An observer only calls `write` and `flush`.
