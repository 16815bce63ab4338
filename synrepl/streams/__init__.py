"""Streams: their declarations, the shapes of their rows in each release, facts and positions.

The streams of the catalog and the classes of their rows can be imported from here: ``RECEIPTS``, ``Receipt``.
Pure: no network, no clock, no reactor.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synrepl.streams.catalog import *  # noqa: F403


if not TYPE_CHECKING:
    # A checker would take any name, so that it would find no mistyped one.

    def __getattr__(name: str) -> Any:
        # Modules have lower case names: importing one of them must not import the catalog.
        hint = ""
        if name[:1].isupper():
            catalog = import_module("synrepl.streams.catalog")
            if name in catalog.PUBLIC:
                return getattr(catalog, name)
            hint = import_module("synrepl.errors").suggest(name, sorted(catalog.PUBLIC))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("synrepl.streams.catalog").PUBLIC})
