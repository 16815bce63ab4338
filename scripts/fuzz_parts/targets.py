"""The targets by name. A target takes bytes, and raises no error except for those that it expects.

A target returns a short description of its result: an input with a new result is mutated further. An error
that the target raises is a find.
"""

from collections.abc import Callable
from typing import Final

from scripts.fuzz_parts.documents import ConfigTarget, RecordedTarget
from scripts.fuzz_parts.requests import HttpTarget
from scripts.fuzz_parts.resp import RespTarget
from scripts.fuzz_parts.target import BadAnswer, Target
from scripts.fuzz_parts.wire import NativeTarget, RedisTarget, SessionTarget

__all__ = ["TARGETS", "BadAnswer", "Target"]

TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "session": SessionTarget,
    "native": NativeTarget,
    "http": HttpTarget,
    "config": ConfigTarget,
    "recorded": RecordedTarget,
    "redis": RedisTarget,
    "resp": RespTarget,
}
