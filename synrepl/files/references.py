"""The checksums of files to which rows refer."""

from collections.abc import Collection
from typing import Any

from synrepl.streams.catalog import FILES
from synrepl.streams.stream import Stream
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST


def referred_files(stream: Stream[Any], facts: Collection[bytes]) -> frozenset[str]:
    """Return the checksums of the files to which these rows refer; those that delete a name: to none."""
    if stream.name != FILES.name and not stream.files:
        return frozenset()
    rows: list[Any] = [row for fact in facts for row in stream.decode_many(jsontext.split(fact), NEWEST)]
    if stream.name == FILES.name:
        return frozenset(row.sha256 for row in rows if row.sha256 is not None)
    files = (getattr(row, column) for row in rows for column in stream.files)
    return frozenset(file["sha256"] for file in files if file is not None)
