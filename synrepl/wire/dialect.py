"""Dialects: the Synapse release that a connection speaks.

The wire has no negotiation (docs/reference/peers.md#tcp-dialect), so a dialect is a release. Commands, their
fields, streams and the fields of their rows each have a span of releases (`Span`) in which they exist. Code
asks whether a dialect is in a span, rather than compare dialects (scripts/lib/dialect_comparisons.py).
"""

import re

import msgspec

from synrepl.errors import ConfigError

Release = tuple[int, int, int]


def parse_release(text: str) -> Release:
    """Return the release with this number, as ``1.13`` or ``1.13.2``."""
    return whole_release(tuple(int(part) for part in text.split(".")))


def whole_release(release: tuple[int, ...]) -> Release:
    """Return a release with its patch number, 0 if it was left out: only whole ones are in a `Span`."""
    major, minor, *patch = release
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
            texts.append("since " + release_text(self.since))
        if self.until is not None:
            texts.append("until " + release_text(self.until))
        return ", ".join(texts) or "always"


def span(since: str = "", until: str = "") -> Span:
    """Return the span between two release numbers: ``span(since="1.13", until="1.22")``."""
    return Span(
        since=parse_release(since) if since else (0, 0, 0), until=parse_release(until) if until else None
    )


ALWAYS = Span()


def release_text(release: Release) -> str:
    """Return the number of a release, without a patch of 0."""
    return ".".join(str(part) for part in (release if release[2] else release[:2]))


class Dialect(msgspec.Struct, frozen=True, order=True):
    """The release of Synapse that a connection speaks. Ordered by release; `name` is for display.

    `LEGACY` (1.0), `MIDDLE` (1.21), `CURRENT` (1.66) and `NATIVE` (between synrepl daemons) are constants;
    `parse` makes the dialect of any other release.

    >>> Dialect.parse("1.83") > CURRENT
    True
    >>> print(Dialect.parse("legacy"), Dialect.parse("1.83"))
    legacy 1.83
    """

    release: Release
    name: str

    @classmethod
    def parse(cls, text: str) -> "Dialect":
        """Parse a name (``legacy``, ``middle``, ``current``, ``native``) or a release (``1.83``).

        Raises `ConfigError` for anything else, and for releases before 0.21, which had no TCP replication.
        """
        for known in (LEGACY, MIDDLE, CURRENT, NATIVE):
            if text == known.name:
                return known
        if not re.fullmatch(r"\d{1,3}\.\d{1,4}(\.\d{1,4})?", text, re.ASCII):
            raise ConfigError(
                f"{text!r} is not a dialect: use legacy, middle, current, native or a release such as 1.83"
            )
        release = parse_release(text)
        if release < (0, 21, 0):
            raise ConfigError(f"Synapse {text} had no TCP replication; the first release with it is 0.21")
        return cls(release=release, name=text)

    def nearest_in(self, releases: Span) -> "Dialect":
        """Return this dialect if it is in the span, otherwise the next known one in it, or else the last."""
        if self.release in releases:
            return self
        points = [one for one in (LEGACY, MIDDLE, CURRENT, NEWEST, NATIVE) if one.release in releases]
        return next((one for one in points if one > self), points[-1])

    def __str__(self) -> str:
        return self.name


LEGACY = Dialect(release=(1, 0, 0), name="legacy")
"""Synapse 1.0."""

MIDDLE = Dialect(release=(1, 21, 0), name="middle")
"""Synapse 1.21."""

CURRENT = Dialect(release=(1, 66, 0), name="current")
"""Synapse 1.66."""

NEWEST = Dialect(release=(1, 163, 0), name="1.163")
"""The newest known release of Synapse."""

NATIVE = Dialect(release=(999, 0, 0), name="native")
"""Between synrepl daemons."""

SYNAPSE = Span(until=NATIVE.release)
"""All releases of Synapse: what is only between synrepl daemons lies outside."""
