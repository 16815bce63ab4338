"""The caches that Synapse invalidates by name, by release, with the arguments of their keys.

``names.txt`` has a line for each form of a cache: its name, the releases from the first to before the last
(all, if there are none), and the arguments of its key. After the name, ``*``: a part of the key from its
beginning drops all entries that begin so; ``+``: the keys of a row are packed. An argument in brackets is no
text: no row can name it, so that it ends what can be given. What a name means besides a cache is in
`synrepl.caches.rules`; names that no row has are in `synrepl.caches.unreachable`.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final

import msgspec

from synrepl.caches.unreachable import kept_answer, runs_out, why_unreachable
from synrepl.errors import ConfigError, suggest
from synrepl.wire.dialect import NEWEST, Dialect, Span, span, whole_release

Release = tuple[int, ...]
"""A release as far as its caches depend on it: without the patch number, unless a patch changed a key."""

NEWEST_KNOWN: Final[Release] = NEWEST.release[:2]
"""A newer release is taken to have the names of this one."""

EVENTS: Final = "get_event"
"""What vintages call the cache of events, which all releases have, and which no row names."""

ROOM_ALIASES: Final = ("dr_cache_fake", "cs_cache_fake")
"""Aliases that stand for what is cached of a room, the one that reaches most first."""

OF_MODULES: Final = span(since="1.69")
"""Releases in which a row can name a function of a module: ``module.function``."""

_FUNCTION: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+", re.ASCII)
_ALIASES: Final = {
    "cs_cache_fake": (span(since="0.99.2"), ("room_id", "user_id...")),
    "ph_cache_fake": (span(since="1.86"), ("room_id",)),
    "dr_cache_fake": (span(since="1.86"), ("room_id",)),
}


class CacheName(msgspec.Struct, frozen=True, kw_only=True):
    """A name that a row of ``caches`` may have, in the releases of `span`.

    `arguments` are those of its key; the first `texts` of them are texts. `is_tree`: a part of the key from
    its beginning drops all entries that begin so. `is_alias`: it stands for entries of other caches, and
    takes any number of keys from its last argument on. `is_packed`: a row has several keys, each as one text.
    `is_of_module`: nothing is known of its keys.
    """

    name: str
    span: Span
    arguments: tuple[str, ...] = ()
    texts: int = 0
    is_tree: bool = False
    is_packed: bool = False
    is_alias: bool = False
    is_of_module: bool = False

    @property
    def can_drop_all(self) -> bool:
        """Whether null keys are understood: receivers fail on them for aliases and packed keys."""
        return not self.is_alias and not self.is_packed

    def takes_as(self, other: "CacheName", keys: tuple[str, ...]) -> bool:
        """Whether these keys, which fit another release's form, mean the same in this one."""
        try:
            self.check(keys)
        except ConfigError:
            return False
        count = len(keys) if not self.is_alias else 0
        return self.is_packed == other.is_packed and self.arguments[:count] == other.arguments[:count]

    def check(self, keys: tuple[str, ...]) -> None:
        """Raise `ConfigError` if no entry can have this key, or no row can name it."""
        name = self.name
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in "".join(keys)):
            raise ConfigError("a key is no text that PostgreSQL stores")
        if self.is_of_module:
            return
        if self.is_alias:
            least, most = 1, 1 if name != "cs_cache_fake" else len(keys) or 1
        else:
            least = most = self.texts
            if self.is_tree:
                least = 1
            elif self.texts < len(self.arguments):
                raise ConfigError(f"a key of {name} is not all text, which no row can name: use --all {name}")
        if not least <= len(keys) <= most:
            takes = " ".join(self.arguments[: self.texts]) or "none"
            part = ", or the first of them" if self.is_tree and self.texts > 1 else ""
            whole = f"; --all {name} drops the whole cache" if self.can_drop_all else ""
            raise ConfigError(f"the keys of {name} are {takes}{part}; {len(keys)} given{whole}")


@cache
def all_names() -> Mapping[str, list[CacheName]]:
    """The forms of each name, oldest first."""
    found: dict[str, list[CacheName]] = {
        name: [CacheName(name=name, span=has, arguments=keys, texts=len(keys), is_alias=True)]
        for name, (has, keys) in _ALIASES.items()
    }
    for line in resources.files(__package__).joinpath("names.txt").read_text("utf-8").splitlines():
        marked, *arguments = line.split()
        has = Span()
        if arguments and ".." in arguments[0]:
            since, until = arguments.pop(0).split("..")
            has = span(since, until)
        name = marked.rstrip("*+")
        texts = next((n for n, one in enumerate(arguments) if one[0] == "("), len(arguments))
        one = CacheName(
            name=name,
            span=has,
            arguments=tuple(one.strip("()") for one in arguments),
            texts=texts,
            is_tree=marked.endswith("*"),
            is_packed=marked.endswith("+"),
        )
        found.setdefault(name, []).append(one)
    return MappingProxyType(found)


def parse_release(text: str) -> Release:
    """Return the release in a text such as ``1.163.2`` or ``1.163.0rc1 (b=...)``. Raises `ConfigError`."""
    found = re.match(r"(\d{1,3}\.\d{1,4})(?:\.(\d{1,4}))?(?![\d])", text)
    if found is None:
        raise ConfigError(f"{text!r} is no release of Synapse, such as 1.163")
    release = Dialect.parse(found[1]).release[:2]
    patches = [one for one in _changed_by_patches() if one[:2] == release and one[2] <= int(found[2] or 0)]
    return max(patches, default=release)


@cache
def _changed_by_patches() -> frozenset[Release]:
    """The patch releases in which the key of a cache is another one than before."""
    spans = [one.span for forms in all_names().values() for one in forms]
    return frozenset(one for span in spans for one in (span.since, span.until) if one and one[2])


@cache
def names_of(release: Release) -> Mapping[str, CacheName]:
    """The names of a release, without functions of modules."""
    at = whole_release(release)
    found = {name: one for name, forms in all_names().items() for one in forms if at in one.span}
    return MappingProxyType(found)


def find_name(name: str, release: Release) -> CacheName:
    """The cache, alias or function of a module of this name. Raises `ConfigError` if the release has none."""
    names = names_of(release)
    if found := names.get(name):
        return found
    which = ".".join(map(str, release))
    if kept_answer(name) or runs_out(name, release):
        raise ConfigError(why_unreachable(name, release))
    if _FUNCTION.fullmatch(name):
        if whole_release(release) not in OF_MODULES:
            raise ConfigError(
                f"Synapse {which} drops no caches of modules such as {name}: 1.69 and newer do; restart each"
                " process that has the module"
            )
        return CacheName(name=name, span=OF_MODULES, is_of_module=True)
    if forms := all_names().get(name):
        has = " and ".join(map(str, _joined(forms)))
        if kin := _kin(name, names):
            raise ConfigError(
                f"Synapse {which} has no cache {name} ({has}); did you mean {' or '.join(kin)}?"
            )
        raise ConfigError(
            f"Synapse {which} has no cache {name} ({has}), and no other cache that is known here in its place"
        )
    if why := why_unreachable(name, release):
        raise ConfigError(why)
    hint = suggest(name, list(names)) or suggest(name, list(all_names()))
    raise ConfigError(f"Synapse {which} has no cache {name}{hint}")


def plain_name(name: str) -> str:
    """A name as Synapse compares those in its settings: without case, other signs, and zeros."""
    return re.sub(r"[^A-Za-z_1-9]", "", name).lower()


def _kin(name: str, names: Iterable[str]) -> list[str]:
    """Names that are longer or shorter than this one, or have most of its words: what came in its place."""
    words = {*name.strip("_").split("_")}

    def is_kin(one: str) -> bool:
        others = {*one.strip("_").split("_")}
        is_part = name.strip("_") in one or one.strip("_") in name
        return is_part or (len(words) > 3 and len(words & others) > 0.8 * len(words | others))

    return [one for one in names if is_kin(one)][:MAX_KIN]


MAX_KIN: Final = 3


def _joined(forms: list[CacheName]) -> list[Span]:
    """The releases that have any of these forms."""
    joined: list[Span] = []
    for one in forms:
        since = joined.pop().since if joined and joined[-1].until == one.span.since else one.span.since
        joined.append(Span(since=since, until=one.span.until))
    return joined
