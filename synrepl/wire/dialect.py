"""Where a connection stands on the line of Synapse releases.

There is no negotiation on this wire, so a dialect is simply a release: commands, their fields, streams
and the fields of their rows each have a span of releases (`Span`) in which they exist, and a connection
is compared with those spans. No other code asks which dialect it is talking.
"""

import re
from collections.abc import Sequence

import msgspec

from synrepl.errors import ConfigError

__all__ = [
    "ALWAYS",
    "CURRENT",
    "LEGACY",
    "MIDDLE",
    "NATIVE",
    "NEWEST",
    "Dialect",
    "Release",
    "Span",
    "nearest",
    "span",
]

Release = tuple[int, int, int]


def _release(text: str) -> Release:
    major, minor, *patch = (int(part) for part in text.split("."))
    return (major, minor, patch[0] if patch else 0)


class Span(msgspec.Struct, frozen=True):
    """The releases in which something exists: from `since` on, and before `until`."""

    since: Release = (0, 0, 0)
    until: Release | None = None

    def __contains__(self, release: object) -> bool:
        return (
            isinstance(release, tuple)
            and self.since <= release
            and (self.until is None or release < self.until)
        )

    def __str__(self) -> str:
        texts = []
        if self.since > (0, 21, 0):
            texts.append("since " + _text(self.since))
        if self.until is not None:
            texts.append("until " + _text(self.until))
        return ", ".join(texts) or "always"


def span(since: str = "", until: str = "") -> Span:
    """A span from release numbers as people write them: ``span(since="1.13", until="1.22")``."""
    return Span(since=_release(since) if since else (0, 0, 0), until=_release(until) if until else None)


ALWAYS = Span()


def _text(release: Release) -> str:
    return ".".join(str(part) for part in (release if release[2] else release[:2]))


class Dialect(msgspec.Struct, frozen=True, order=True):
    """How a connection speaks: as this release of Synapse does.

    Ordered by release. `name` is for people.
    """

    release: Release
    name: str

    @classmethod
    def parse(cls, text: str) -> "Dialect":
        """A dialect by name (``legacy``, ``middle``, ``current``, ``native``) or release (``1.83``).

        Raises `ConfigError` for anything else, and for releases before 0.21, which had no such wire.
        """
        for known in (LEGACY, MIDDLE, CURRENT, NATIVE):
            if text == known.name:
                return known
        if not re.fullmatch(r"\d{1,3}\.\d{1,4}(\.\d{1,4})?", text, re.ASCII):
            raise ConfigError(
                f"{text!r} is not a dialect: say legacy, middle, current, native or a release such as 1.83"
            )
        release = _release(text)
        if release < (0, 21, 0):
            raise ConfigError(f"Synapse {text} had no TCP replication; the first release with it is 0.21")
        return cls(release=release, name=text)

    def __str__(self) -> str:
        return self.name


LEGACY = Dialect(release=(1, 0, 0), name="legacy")
MIDDLE = Dialect(release=(1, 21, 0), name="middle")
CURRENT = Dialect(release=(1, 66, 0), name="current")
NEWEST = Dialect(release=(1, 163, 0), name="1.163")
NATIVE = Dialect(release=(999, 0, 0), name="native")


def nearest(dialect: Dialect, points: Sequence[Dialect]) -> Dialect:
    """The first of these (in order of release) after `dialect`, or the last of them if none is."""
    return next((point for point in points if point > dialect), points[-1])
