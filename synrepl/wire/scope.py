"""The streams that an operation concerns: the words of `Route.stream` and `Command.STREAM`.

Any other word is the name of the one stream that the operation concerns.
"""

from typing import Final

NO_STREAM: Final = ""
"""It concerns no stream: a limit of a key's streams does not matter."""

NAMED_STREAMS: Final = "<named>"
"""It concerns the streams that the request names."""

SEEN_STREAMS: Final = "<seen>"
"""Of each stream that the peer may not see, the answer says nothing."""

ALL_STREAMS: Final = "<all>"
"""It concerns every stream: a peer whose key is limited to some streams is refused."""
