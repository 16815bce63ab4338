"""Files of the file store: their names, checksums and sizes."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from synrepl.streams.stream import Stream, row

__all__ = ["FILES", "File"]

MAX_NAME: Final = 1_024
"""Characters of a name."""

Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


@row
class File:
    """A file was created, modified or deleted.

    `sha256` and `size` (in bytes) describe its content; both are null for a deleted file. ``create`` and
    ``modify`` have the same effect: the name now has this content.
    """

    action: Literal["create", "modify", "delete"]
    name: str
    sha256: Checksum | None
    size: Size | None

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_NAME:
            raise ValueError(f"a name has 1 to {MAX_NAME} characters")
        has = self.sha256 is not None, self.size is not None
        if has != (self.action != "delete",) * 2:
            raise ValueError("a file has a sha256 and a size; a deleted one has neither")


# A stream of synrepl, since the native dialect: peers that speak a release of Synapse do not receive it.
FILES = Stream("files", File, key="name", tombstone=lambda row: row.action == "delete", since="999.0")
