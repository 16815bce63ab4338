"""Scrubbing: slow verification of all files, to find damage on disk."""

from collections.abc import Callable
from typing import Final

from synrepl.ports.files import Damaged
from synrepl.storage.files.file_check import FileCheck

__all__ = ["Scrub"]

LEAST: Final = 4_096
"""The number of bytes that a file counts for at least."""


class Scrub:
    """An `IScrub`. `after` gives the next checksums after one, `check` starts verifying a file."""

    def __init__(
        self, position: str, after: Callable[[str], list[str]], check: Callable[[str], FileCheck | None]
    ) -> None:
        self.position = position
        self._after = after
        self._check = check
        self._ahead: list[str] = []
        self._checking: FileCheck | None = None

    def step(self, count: int) -> tuple[list[str], bool]:
        """Verify about `count` more bytes. Gives the damaged files, and whether the round is complete."""
        bad: list[str] = []
        while count > 0:
            if not self._ahead:
                self._ahead = self._after(self.position)[::-1]
                if not self._ahead:
                    self.position = ""
                    return bad, True
            sha256 = self._ahead[-1]
            if self._checking is None:
                self._checking = self._check(sha256)
            if self._checking is not None:
                size = min(count, 1024 * 1024)
                count -= max(LEAST, min(size, self._checking.size))
                try:
                    good = self._checking.step(size)
                except Damaged:
                    bad.append(sha256)
                else:
                    if good is None:
                        continue
                    good.close()
            self._checking = None
            self.position = self._ahead.pop()
        return bad, False

    def close(self) -> None:
        """Close the file that is being verified."""
        if self._checking is not None:
            self._checking.close()
            self._checking = None
