"""The targets by name, with those of rooms, which `fuzzing` below their tests declares.

A target takes bytes, and raises no error except for those that it expects. It returns a short description of
its result: an input with a new result is mutated further. An error that the target raises is a find.
"""

from collections.abc import Callable
from typing import Final

from scripts.fuzz_parts.documents import ConfigTarget, RecordedTarget
from scripts.fuzz_parts.requests import HttpTarget
from scripts.fuzz_parts.target import BadAnswer, Target
from scripts.fuzz_parts.wire import RedisTarget, SessionTarget
from scripts.lib.declared import of_rooms

__all__ = ["TARGETS", "BadAnswer", "Target"]

TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "session": SessionTarget,
    "http": HttpTarget,
    "config": ConfigTarget,
    "recorded": RecordedTarget,
    "redis": RedisTarget,
    **of_rooms("fuzzing", "TARGETS"),
}
