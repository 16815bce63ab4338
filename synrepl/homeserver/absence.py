"""The status of a daemon that has nothing of a homeserver."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

ABSENT_STATUS: Final[Mapping[str, Any]] = MappingProxyType({"homeserver": None, "tables": [], "writers": []})
