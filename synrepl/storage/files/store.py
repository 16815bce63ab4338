"""Files on the disk, under their checksums.

::

    DIR/sha256/ab/cdef...   the bytes whose checksum is abcdef...
    DIR/incoming/           what is being received, gone after a restart
    DIR/partial/            downloads to be gone on with, by their checksum
    DIR/quarantine/         what was found damaged, for people to look at
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Final

from synrepl.storage.files.durability import make_directory, telling
from synrepl.storage.files.file_check import FileCheck, StoredFile
from synrepl.storage.files.scrub import Scrub
from synrepl.storage.files.spool import Spool
from synrepl.storage.private_files import sync_directory

__all__ = ["FileStore"]

REMEMBERED: Final = 10_000
"""Files of which it is remembered that they were good a short while ago."""

_checksum: Final = re.compile("[0-9a-f]{64}", re.ASCII)
_rest: Final = re.compile("[0-9a-f]{62}", re.ASCII)
_prefixes: Final = [f"{number:02x}" for number in range(256)]

_Identity = tuple[int, int, int]


class FileStore:
    """An `IFileStore` in `directory`, which is made with the first file.

    `seconds` is a clock. What was found good is looked through again after `remember_seconds`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        seconds: Callable[[], float],
        remember_seconds: float = 60.0,
    ) -> None:
        self.directory = Path(directory)
        self.quarantined = 0
        self._kept = self.directory / "sha256"
        self._incoming = self.directory / "incoming"
        self._partial = self.directory / "partial"
        self._quarantine = self.directory / "quarantine"
        self._seconds = seconds
        self._remember_seconds = remember_seconds
        self._good: dict[str, tuple[float, _Identity]] = {}
        self._counted: dict[str, tuple[int, int]] = {}

    # -- how much there is ---------------------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """How many files are here, as far as they were counted."""
        return sum(count for count, _ in list(self._counted.values()))

    @property
    def stored_bytes(self) -> int:
        """And how many bytes those have."""
        return sum(size for _, size in list(self._counted.values()))

    def sweep(self, keep: Callable[[str], bool]) -> int:
        """Remove what an earlier life left half done; how many files that were."""
        removed = 0
        with telling("sweep"):
            for path in _listed(self._incoming):
                path.unlink()
                removed += 1
            for path in _listed(self._partial):
                if not keep(path.name):
                    path.unlink()
                    removed += 1
            self.quarantined = len(_listed(self._quarantine))
        return removed

    def count(self) -> list[str] | None:
        """Count the next part of what is here, and give its checksums; None when all is counted."""
        prefix = next((prefix for prefix in _prefixes if prefix not in self._counted), None)
        if prefix is None:
            return None
        sizes: dict[str, int] = {}
        with telling("count files"):
            if self._kept.is_dir():
                for path in _listed(self._kept / prefix):
                    if _rest.fullmatch(path.name):
                        sizes[prefix + path.name] = path.stat().st_size
            else:
                self._counted.update((other, (0, 0)) for other in _prefixes if other not in self._counted)
        self._counted[prefix] = len(sizes), sum(sizes.values())
        return list(sizes)

    def count_anew(self) -> None:
        """Begin the count again."""
        self._counted.clear()

    # -- coming in -----------------------------------------------------------------------------------------

    def receive(self) -> Spool:
        """Bytes whose checksum is told at the end."""
        with telling("receive"):
            make_directory(self._incoming)
        return Spool(self._incoming / token_hex(16), self._keep)

    def resume(self, sha256: str) -> Spool:
        """Bytes that are to have this checksum, with those that came earlier."""
        _check(sha256)
        with telling("receive"):
            make_directory(self._partial)
        return Spool(self._partial / sha256, self._keep)

    def _keep(self, path: Path, sha256: str, size: int) -> bool:
        target = self._path(sha256)
        make_directory(target.parent)
        try:
            before = target.stat().st_size
        except FileNotFoundError:
            before = None
        # It may be there and damaged, so it is replaced in any case.
        path.replace(target)
        sync_directory(target.parent)
        self._recount(sha256, 0 if before is not None else 1, size - (before or 0))
        self._remember(sha256, target.stat())
        return before is None

    # -- what is here --------------------------------------------------------------------------------------

    def has(self, sha256: str) -> bool:
        """Whether it is here, good as far as is known."""
        return self._path(sha256).is_file()

    def check(self, sha256: str) -> FileCheck | None:
        """Begin to look through a file; None if it is not here."""
        with telling("check a file"):
            try:
                descriptor = os.open(self._path(sha256), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        until, identity = self._good.get(sha256, (0.0, None))
        return FileCheck(
            descriptor,
            sha256,
            is_known=self._seconds() < until and identity == _identity(os.fstat(descriptor)),
            good=lambda stat: self._remember(sha256, stat),
            bad=lambda stat: self._put_aside(sha256, stat),
        )

    def open_verified(self, sha256: str) -> StoredFile | None:
        """The open file, all of which was found good now; None if it is not here. Raises `Damaged`."""
        checking = self.check(sha256)
        if checking is None:
            return None
        try:
            while (file := checking.step(64 * 1024 * 1024)) is None:
                pass
        finally:
            checking.close()
        return file

    def scrub(self, position: str = "") -> Scrub:
        """Go through all files, from behind this place on."""
        return Scrub(position, self._after, self._check_again)

    def remove(self, sha256: str) -> None:
        """Delete a file, if it is here."""
        path = self._path(sha256)
        with telling("remove a file"):
            try:
                size = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                return
        self._good.pop(sha256, None)
        self._recount(sha256, -1, -size)

    def _after(self, position: str) -> list[str]:
        """The checksums behind this one, as many as have the same first two digits."""
        with telling("scrub"):
            for prefix in _prefixes if self._kept.is_dir() else ():
                if prefix >= position[:2]:
                    names = (prefix + path.name for path in _listed(self._kept / prefix))
                    found = sorted(name for name in names if name > position and _checksum.fullmatch(name))
                    if found:
                        return found
        return []

    def _check_again(self, sha256: str) -> FileCheck | None:
        self._good.pop(sha256, None)
        return self.check(sha256)

    def _remember(self, sha256: str, stat: os.stat_result) -> None:
        self._good.pop(sha256, None)
        while len(self._good) >= REMEMBERED:
            del self._good[next(iter(self._good))]
        self._good[sha256] = self._seconds() + self._remember_seconds, _identity(stat)

    def _put_aside(self, sha256: str, stat: os.stat_result) -> None:
        """Into quarantine, unless a good one has taken its place meanwhile."""
        path = self._path(sha256)
        self._good.pop(sha256, None)
        with telling("put into quarantine"):
            try:
                now = path.stat()
            except FileNotFoundError:
                return
            if now.st_ino != stat.st_ino:
                return
            make_directory(self._quarantine)
            path.replace(self._quarantine / sha256)
            sync_directory(path.parent)
            self.quarantined = len(_listed(self._quarantine))
        self._recount(sha256, -1, -now.st_size)

    def _recount(self, sha256: str, count: int, size: int) -> None:
        # What was not counted yet will be.
        counted = self._counted.get(sha256[:2])
        if counted is not None:
            self._counted[sha256[:2]] = counted[0] + count, counted[1] + size

    def _path(self, sha256: str) -> Path:
        _check(sha256)
        return self._kept / sha256[:2] / sha256[2:]


def _check(sha256: str) -> None:
    # It becomes a path: nothing else may.
    if not _checksum.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is no checksum")


def _identity(stat: os.stat_result) -> _Identity:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
