"""What a subscriber of a served channel was sent, as lines."""

from synrepl.channel.resp_codec import message

MAIN = b"hs"


class Subscription:
    """The bytes that a subscriber was sent."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        """Take what the channel sends."""
        self.data += data

    def take(self) -> list[str]:
        """The lines of the channel itself since the last time."""
        found = self.data.split(message(MAIN, b"")[:-5])
        self.data = b""
        return [one.partition(b"\r\n")[2].decode().rstrip("\r\n") for one in found[1:]]

    def take_but_questions(self) -> list[str]:
        """As `take`, without questions for positions."""
        return [line for line in self.take() if line != "REPLICATE "]
