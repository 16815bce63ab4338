"""The file store: files on disk, named by their checksums.

::

    DIR/sha256/ab/cdef...   the file with checksum abcdef...
    DIR/incoming/           uploads in progress, deleted at a restart
    DIR/partial/            interrupted downloads, by checksum, to be resumed
    DIR/quarantine/         damaged files, for inspection
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Final

from synrepl.files.file_check import Scrub, StoredFile
from synrepl.files.spool import Spool
from synrepl.storage.private_files import make_directory, map_errors, sync_directory

REMEMBERED: Final = 10_000
"""The number of recently verified files that are remembered."""

REMEMBER_SECONDS: Final = 60.0

_checksum: Final = re.compile("[0-9a-f]{64}", re.ASCII)
_rest: Final = re.compile("[0-9a-f]{62}", re.ASCII)
_prefixes: Final = [f"{number:02x}" for number in range(256)]

_Identity = tuple[int, int, int]


class FileStore:
    """Files by their checksum, in `directory`, which is created for the first file. Blocking; one thread at a
    time.

    `seconds` is a clock. A verified file is trusted for a minute, unless it changes.
    """

    def __init__(self, directory: str | os.PathLike[str], *, seconds: Callable[[], float]) -> None:
        self.directory = Path(directory)
        self.quarantined = 0
        self._files = self.directory / "sha256"
        self._incoming = self.directory / "incoming"
        self._partial = self.directory / "partial"
        self._quarantine = self.directory / "quarantine"
        self._seconds = seconds
        self._good: dict[str, tuple[float, _Identity]] = {}
        self._counted: dict[str, tuple[int, int]] = {}

    @property
    def stored(self) -> int:
        """The number of stored files, as far as they are counted."""
        return sum(count for count, _ in list(self._counted.values()))

    @property
    def stored_bytes(self) -> int:
        """The size of the counted files, in bytes."""
        return sum(size for _, size in list(self._counted.values()))

    def sweep(self, keep: Callable[[str], bool]) -> int:
        """Delete unfinished uploads, and partial downloads that are not to be kept. Returns how many."""
        with map_errors("delete unfinished files"):
            uploads = _list(self._incoming)
            for path in uploads:
                path.unlink()
            self.quarantined = len(_list(self._quarantine))
        return len(uploads) + self.sweep_downloads(keep)

    def sweep_downloads(self, keep: Callable[[str], bool]) -> int:
        """Delete partial downloads that are not to be kept. Returns how many."""
        with map_errors("delete unfinished files"):
            unused = [path for path in _list(self._partial) if not keep(path.name)]
            for path in unused:
                path.unlink(missing_ok=True)
        return len(unused)

    def count(self) -> list[str] | None:
        """Count the next part of the files, and give their checksums; None when all are counted."""
        prefix = next((prefix for prefix in _prefixes if prefix not in self._counted), None)
        if prefix is None:
            return None
        sizes: dict[str, int] = {}
        with map_errors("count files"):
            if self._files.is_dir():
                for path in _list(self._files / prefix):
                    if _rest.fullmatch(path.name):
                        sizes[prefix + path.name] = path.stat().st_size
            else:
                self._counted.update((other, (0, 0)) for other in _prefixes if other not in self._counted)
        self._counted[prefix] = len(sizes), sum(sizes.values())
        return list(sizes)

    def restart_count(self) -> None:
        """Forget the counts, so that `count` starts again."""
        self._counted.clear()

    def receive(self) -> Spool:
        """Start an upload whose checksum comes at its end."""
        with map_errors("receive a file"):
            make_directory(self._incoming)
        return Spool(self._incoming / token_hex(16), self._store)

    def resume(self, sha256: str, size: int) -> Spool:
        """Start or resume a download of the file with this checksum.

        Bytes of an earlier download are deleted if they are more than `size`.
        """
        _check(sha256)
        path = self._partial / sha256
        with map_errors("receive a file"):
            make_directory(self._partial)
            if path.exists() and path.stat().st_size > size:
                path.unlink()
        return Spool(path, self._store)

    def _store(self, path: Path, sha256: str, size: int) -> bool:
        target = self._path(sha256)
        make_directory(target.parent)
        try:
            before = target.stat().st_size
        except FileNotFoundError:
            before = None
        # An existing file may be damaged, so it is replaced.
        path.replace(target)
        sync_directory(target.parent)
        self._adjust_count(sha256, 0 if before is not None else 1, size - (before or 0))
        self._remember(sha256, target.stat())
        return before is None

    def has(self, sha256: str) -> bool:
        """Whether the file is stored and not known to be damaged."""
        return self._path(sha256).is_file()

    def open(self, sha256: str) -> StoredFile | None:
        """Open a file, which is to be verified before it is read; None if it is not stored."""
        with map_errors("check a file"):
            try:
                descriptor = os.open(self._path(sha256), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        until, identity = self._good.get(sha256, (0.0, None))
        return StoredFile(
            descriptor,
            sha256,
            is_verified=self._seconds() < until and identity == _identity(os.fstat(descriptor)),
            good=lambda stat: self._remember(sha256, stat),
            bad=lambda stat: self._quarantine_file(sha256, stat),
        )

    def scrub(self, position: str = "") -> Scrub:
        """Start verifying all files after this checksum."""
        return Scrub(position, self._after, self._open_unverified)

    def remove(self, sha256: str) -> None:
        """Delete a file, if it is stored."""
        path = self._path(sha256)
        with map_errors("remove a file"):
            try:
                size = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                return
        self._good.pop(sha256, None)
        self._adjust_count(sha256, -1, -size)

    def _after(self, position: str) -> list[str]:
        """The next checksums after this one, up to the end of their directory."""
        with map_errors("list stored files"):
            for prefix in _prefixes if self._files.is_dir() else ():
                if prefix >= position[:2]:
                    names = (prefix + path.name for path in _list(self._files / prefix))
                    found = sorted(name for name in names if name > position and _checksum.fullmatch(name))
                    if found:
                        return found
        return []

    def _open_unverified(self, sha256: str) -> StoredFile | None:
        self._good.pop(sha256, None)
        return self.open(sha256)

    def _remember(self, sha256: str, stat: os.stat_result) -> None:
        self._good.pop(sha256, None)
        while len(self._good) >= REMEMBERED:
            del self._good[next(iter(self._good))]
        self._good[sha256] = self._seconds() + REMEMBER_SECONDS, _identity(stat)

    def _quarantine_file(self, sha256: str, stat: os.stat_result) -> None:
        """Move a damaged file to quarantine, unless it has been replaced meanwhile."""
        path = self._path(sha256)
        self._good.pop(sha256, None)
        with map_errors("put into quarantine"):
            try:
                now = path.stat()
            except FileNotFoundError:
                return
            if now.st_ino != stat.st_ino:
                return
            make_directory(self._quarantine)
            path.replace(self._quarantine / sha256)
            sync_directory(path.parent)
            self.quarantined = len(_list(self._quarantine))
        self._adjust_count(sha256, -1, -now.st_size)

    def _adjust_count(self, sha256: str, count: int, size: int) -> None:
        # A directory that is not counted yet will be counted later.
        counted = self._counted.get(sha256[:2])
        if counted is not None:
            self._counted[sha256[:2]] = counted[0] + count, counted[1] + size

    def _path(self, sha256: str) -> Path:
        _check(sha256)
        return self._files / sha256[:2] / sha256[2:]


def _check(sha256: str) -> None:
    # Checked, since it becomes part of a path.
    if not _checksum.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 checksum of 64 lowercase hexadecimal digits")


def _identity(stat: os.stat_result) -> _Identity:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _list(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
