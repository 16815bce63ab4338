"""Where a daemon is."""

import msgspec

__all__ = ["Address"]


class Address(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a daemon is: a client endpoint string for replicas, and a URL. Either may be unknown."""

    native: str = ""
    http: str = ""

    def __str__(self) -> str:
        return f"{self.native or '-'} {self.http or '-'}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """The reverse of `str`."""
        native, _, http = text.partition(" ")
        return cls(native="" if native == "-" else native, http="" if http in ("", "-") else http)

    def is_same(self, other: "Address") -> bool:
        """Whether both are one place, as far as both know it."""
        pairs = ((self.native, other.native), (self.http, other.http))
        return any(ours and ours == theirs for ours, theirs in pairs)

    def __bool__(self) -> bool:
        return bool(self.native or self.http)
