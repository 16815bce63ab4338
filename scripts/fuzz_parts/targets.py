"""What is fuzzed: each target takes bytes, and lets nothing out but what its page of the manual names.

A target answers with what it did, in short: an input that made it do something new is worth changing
further. Whatever it raises is a find.
"""

from collections.abc import Callable
from typing import Final

from scripts.fuzz_parts.documents import ConfigTarget, RecordedTarget
from scripts.fuzz_parts.requests import HttpTarget
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
}
