"""Address: where a daemon can be reached."""

import msgspec


class Address(msgspec.Struct, frozen=True, omit_defaults=True):
    """The addresses of a daemon.

    `native` is a client endpoint string for replicas, `http` a URL. Either may be empty.
    """

    native: str = ""
    http: str = ""

    def __str__(self) -> str:
        return f"{self.native or '-'} {self.http or '-'}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse the result of `str`."""
        native, _, http = text.partition(" ")
        return cls(native="" if native == "-" else native, http="" if http in ("", "-") else http)

    @property
    def words(self) -> str:
        """The addresses that are known, for messages."""
        return ", ".join(filter(None, (self.native, self.http)))

    def is_same(self, other: "Address") -> bool:
        """Whether both are of the same daemon: their `native` or their `http` is equal and not empty."""
        pairs = ((self.native, other.native), (self.http, other.http))
        return any(ours and ours == theirs for ours, theirs in pairs)

    def __bool__(self) -> bool:
        return bool(self.native or self.http)
