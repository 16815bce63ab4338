"""Why a log takes an append never, however often it is asked."""

from synrepl.errors import StorageError

__all__ = ["GivenElsewhere", "KeyReused"]


class KeyReused(StorageError):
    """An idempotency key came again, with another request than the one it was first used for."""

    def __init__(self, *, key: str, stream: str) -> None:
        super().__init__(
            op="append", why=f"idempotency key {key!r} was used for another request", stream=stream
        )
        self.key = key


class GivenElsewhere(StorageError):
    """The tokens of this stream are given elsewhere, as in a table: nothing can be appended to it here."""

    def __init__(self, *, stream: str) -> None:
        super().__init__(
            op="append",
            why="its facts come from a table",
            hint="write them there, with ids from its sequence",
            stream=stream,
            tried=False,
        )
