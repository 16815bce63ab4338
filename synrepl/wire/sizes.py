"""How large facts can be, wherever they travel."""

from typing import Final

MIB: Final = 1024 * 1024

MAX_FACT: Final = 64 * MIB
"""The most bytes in the rows of one fact, as the log keeps them."""

MAX_HELD: Final = MAX_FACT + 64 * MIB
"""The most bytes of all ephemeral facts together, which cannot be split: a fact, and 8 MiB for each ephemeral
stream."""
