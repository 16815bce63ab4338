"""Counts the work of a function, where a test could only guess at it by the time that it took."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["count_operations"]


def count_operations(work: Callable[[], object]) -> int:
    """Run `work`, and return how many bytecode instructions that took, in all functions that it called.

    The same work takes the same number on every machine. Loops inside functions written in C are not counted.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
