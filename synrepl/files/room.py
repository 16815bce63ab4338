"""The room of files: bytes by checksum, and the names of files as a stream."""

from synrepl.rooms import Command, Room


class FilesRoom(Room):
    """Files that travel with the log."""

    name = "files"
    after = ("replicas",)
    commands = (
        Command(
            "files",
            "synrepl.files.commands:files",
            "List the names of files, and get a file by its name.",
            "Read and write",
        ),
    )

    def import_handlers(self) -> None:
        import synrepl.files.handlers  # noqa: F401
