"""Vintages: the meaning of cache names on the wire in one release of Synapse.

See docs/reference/peers.md#caches.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from synrepl.caches.entries import WireKey
from synrepl.caches.rules import rules_of
from synrepl.caches.vintages import Drop as Drop  # noqa: PLC0414  # exported
from synrepl.caches.vintages import aliases, implications
from synrepl.errors import ConfigError
from synrepl.wire import jsontext
from synrepl.wire.dialect import SYNAPSE, Dialect

PACKED: Final = ("_get_e2e_cross_signing_signatures_for_device", "_get_server_keys_json")
"""Caches whose rows are lists of packed keys: keys of several arguments, each sent as one string. The row of
any other cache is one key, argument by argument.
"""

_packed: Final = msgspec.json.Decoder(tuple[str, ...])


class Invalidation(msgspec.Struct, frozen=True):
    """A request to drop one entry of a cache, or all of them if `key` is None.

    The empty key is an ordinary key: that of a cache without arguments.

    >>> Invalidation("get_user_by_id", ("@ada:hs",)).key
    ('@ada:hs',)
    """

    cache: str
    key: tuple[str, ...] | None


class Unreadable(msgspec.Struct, frozen=True):
    """A key that an alias skips, as it cannot read it."""

    key: str


AliasFunction = Callable[..., Iterable[Drop | Unreadable]]
ImpliedFunction = Callable[[Any], Iterable[Drop]]
A = TypeVar("A", bound=AliasFunction)
B = TypeVar("B", bound=ImpliedFunction)


class _Alias(msgspec.Struct, frozen=True):
    function: AliasFunction
    least: int
    most: int | None
    samples: Collection[Sequence[str]]
    examples: tuple[Invalidation, ...]
    reaches: frozenset[str]


class _Implied(msgspec.Struct, frozen=True):
    function: ImpliedFunction
    samples: Collection[Any]
    examples: tuple[Invalidation, ...]
    reaches: frozenset[str] | None


class Vintage:
    """The cache names of one release: aliases, and streams whose rows imply invalidations.

    A plain name is the cache of that name. An alias is a name for entries of several caches: a function of
    keys. An implication is a function of a row. Both yield pairs of a cache and a key, or a list of keys
    (None: all entries).

    `of` has those of Synapse's releases.

    >>> Vintage.of("1.163").is_alias("ph_cache_fake"), Vintage.of("1.66").is_alias("ph_cache_fake")
    (True, False)
    >>> mine = Vintage("mine")  # or Vintage.of("1.163").extended("mine")
    >>> @mine.alias("my_room_fake")
    ... def my_room(room_id):
    ...     yield "get_my_room", (room_id,)
    >>> list(mine.expand("my_room_fake", ["!room:hs"]))
    [Invalidation(cache='get_my_room', key=('!room:hs',))]
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._aliases: dict[str, _Alias] = {}
        self._implied: dict[str, _Implied] = {}
        # Declarations of this vintage itself: they must be unique, while inherited ones may be replaced.
        self._own: set[tuple[str, str]] = set()
        self._is_sealed = False

    def __repr__(self) -> str:
        return f"Vintage({self.name!r})"

    @staticmethod
    def of(*releases: Dialect | str) -> "Vintage":
        """Return what any of these releases of Synapse drops: `synrepl.LEGACY`, ``"1.163"``...

        `NATIVE`, as no release at all, means every release: a daemon's log may have facts of each. The
        vintage is sealed; change a copy of it (`extended`). Raises `ConfigError` for a text that is no
        release.
        """
        found = frozenset(Dialect.parse(one) if isinstance(one, str) else one for one in releases)
        return _of(frozenset() if any(one.release not in SYNAPSE for one in found) else found)

    def extended(self, name: str) -> "Vintage":
        """Return a copy to which aliases and implications can be added, or in which they can be replaced."""
        copy = Vintage(name)
        copy._aliases.update(self._aliases)
        copy._implied.update(self._implied)
        return copy

    def seal(self) -> None:
        """Forbid further changes, as other code relies on this vintage."""
        self._is_sealed = True

    def alias(self, name: str, *, samples: Iterable[Sequence[str]] | None = None) -> Callable[[A], A]:
        """Decorate a function of keys that yields the entries that `name` means.

        It is called with `samples` of keys to find the caches that it reaches, so these must make it yield
        every cache that it can. The default samples are a room and users, for several numbers of keys.

        Raises `ConfigError` for a second alias of this name, a sealed vintage, or a sample that fails.
        """

        def add(function: A) -> A:
            self._declare("alias", name)
            least, most = _how_many(function)
            keys_to_try = _rooms_and_users(least, most) if samples is None else list(samples)
            try:
                examples = _examples(name, (function(*keys) for keys in keys_to_try))
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError(f"alias {name} of {self.name} fails for its samples: {error}") from error
            reaches = frozenset(example.cache for example in examples)
            self._aliases[name] = _Alias(function, least, most, keys_to_try, examples, reaches)
            return function

        return add

    def implied(self, stream: str, *, samples: Collection[Any] = ()) -> Callable[[B], B]:
        """Decorate a function of a row of `stream` that yields the entries that the row invalidates.

        It is called with `samples` of rows to find the caches that it reaches, so these must make it yield
        every cache that it can; its errors pass through. Without samples it counts as reaching every cache.

        Raises `ConfigError` for the stream ``caches``, a second implication of a stream, or a sealed vintage.
        """

        def add(function: B) -> B:
            if stream == "caches":
                raise ConfigError("rows of the stream caches cannot imply invalidations: declare an alias")
            self._declare("implied", stream)
            examples = _examples(stream, (function(row) for row in samples))
            reaches = frozenset(example.cache for example in examples) if samples else None
            self._implied[stream] = _Implied(function, samples, examples, reaches)
            return function

        return add

    def _declare(self, kind: str, name: str) -> None:
        if self._is_sealed:
            raise ConfigError(f"vintage {self.name} is sealed; change a copy: {self.name}.extended(...)")
        if (kind, name) in self._own:
            raise ConfigError(f"vintage {self.name} declares {name} twice")
        self._own.add((kind, name))

    @property
    def aliases(self) -> Mapping[str, AliasFunction]:
        """Aliases by name."""
        return MappingProxyType({name: alias.function for name, alias in self._aliases.items()})

    @property
    def implications(self) -> Mapping[str, ImpliedFunction]:
        """Implications by stream."""
        return MappingProxyType({stream: implied.function for stream, implied in self._implied.items()})

    def is_alias(self, name: str) -> bool:
        """Whether this name is an alias; it may be the name of a cache as well."""
        return name in self._aliases

    def expand(
        self,
        cache_func: str,
        keys: Sequence[str] | None,
        *,
        unreadable: Callable[[Unreadable], object] = lambda key: None,
    ) -> Iterator[Invalidation]:
        """Expand a row of ``caches`` to invalidations. Keys that an alias cannot read go to `unreadable`.

        Raises ValueError, during iteration, for keys that the alias does not support.
        """
        for drop in self.drops(cache_func, keys):
            if isinstance(drop, Unreadable):
                unreadable(drop)
            else:
                yield from invalidations(drop)

    def drops(self, cache_func: str, keys: Sequence[str] | None) -> Iterable[Drop | Unreadable]:
        """What `expand` yields, as pairs of a cache and its keys, and the keys that an alias cannot read.

        Raises ValueError, maybe during iteration, for keys that the alias does not support.
        """
        alias = self._aliases.get(cache_func)
        if alias is None or (keys is None and cache_func in alias.reaches):
            return ((cache_func, None if keys is None else tuple(keys)),)
        if keys is None:
            raise ValueError(f"{cache_func} is an alias, not a cache: its keys cannot be null")
        if len(keys) < alias.least or (alias.most is not None and len(keys) > alias.most):
            upto = "" if alias.most == alias.least else f" to {alias.most}"
            expected = f"{alias.least}" + (" or more" if alias.most is None else upto)
            raise ValueError(f"{cache_func} takes {expected} keys, not {len(keys)}")
        return alias.function(*keys)

    def implied_by(self, stream: str, row: Any) -> Iterator[Invalidation]:
        """The invalidations that a typed row of a stream implies."""
        for drop in self.implied_drops(stream, row):
            yield from invalidations(drop)

    def implied_drops(self, stream: str, row: Any) -> Iterable[Drop]:
        """What `implied_by` yields, as pairs of a cache and its keys."""
        implied = self._implied.get(stream)
        return () if implied is None else implied.function(row)

    def spared_by(self, other: "Vintage", caches: Collection[str]) -> dict[str, list[str]]:
        """The caches of which `other` drops less, each with the aliases and streams that tell it to."""
        found: dict[str, list[str]] = {}
        for source, name in [
            *((source, one) for source, alias in self._aliases.items() for one in sorted(alias.reaches)),
            *(
                (source, one)
                for source, implied in self._implied.items()
                for one in sorted(implied.reaches or ())
            ),
        ]:
            if name in caches and self._is_spared(source, name, other):
                found.setdefault(name, []).append(source)
        return found

    def _is_spared(self, source: str, name: str, other: "Vintage") -> bool:
        alias = self._aliases.get(source)
        samples = self._implied[source].samples if alias is None else alias.samples
        for sample in samples:
            theirs = other._keys(source, sample, name, is_alias=alias is not None)
            if (
                None not in theirs
                and not self._keys(source, sample, name, is_alias=alias is not None) <= theirs
            ):
                return True
        return False

    def _keys(self, source: str, sample: Any, name: str, *, is_alias: bool) -> set[WireKey]:
        """The keys of a cache that a sample drops."""
        try:
            drops = list(self.drops(source, sample) if is_alias else self.implied_drops(source, sample))
        except ValueError:
            # The registry then drops all that the alias reaches.
            return {None} if name in self.reaches(source) else set()
        found = [one for drop in drops if not isinstance(drop, Unreadable) for one in invalidations(drop)]
        return {one.key for one in found if one.cache == name}

    def reaches(self, alias: str) -> frozenset[str]:
        """The caches that an alias can invalidate; a plain name reaches itself."""
        found = self._aliases.get(alias)
        return frozenset([alias]) if found is None else found.reaches

    def reached_by(self, stream: str) -> frozenset[str] | None:
        """The caches that rows of this stream can invalidate; None if that may be any.

        Rows of ``caches`` reach any cache by its name; this returns those that aliases reach.
        """
        if stream == "caches":
            return frozenset().union(*(alias.reaches for alias in self._aliases.values()))
        implied = self._implied.get(stream)
        return frozenset() if implied is None else implied.reaches

    def examples(self) -> Iterator[tuple[str, Invalidation]]:
        """The invalidations of the samples, each with its alias or stream."""
        for name, alias in self._aliases.items():
            yield from ((name, example) for example in alias.examples)
        for stream, implied in self._implied.items():
            yield from ((stream, example) for example in implied.examples)


@cache
def _of(dialects: frozenset[Dialect], *, others: bool = False) -> Vintage:
    made = Vintage(" and ".join(str(one) for one in sorted(dialects)) or "any release")
    rules = rules_of(dialects, others=others)
    for name, function in aliases(rules):
        made.alias(name)(function)
    for name in dict.fromkeys(rule.source for rule in rules if rule.key == "packed"):
        made.alias(name, samples=[[pack(("@user:one", "DEVICE"))]])(_packed_keys(name))
    for stream, samples, implied in implications(rules):
        made.implied(stream, samples=samples)(implied)
    made.seal()
    return made


def of_connections(dialects: Iterable[Dialect | None]) -> Vintage:
    """What a worker drops that has connections of these dialects; None is one that does not say its release.

    It is `Vintage.of`, and for caches and aliases that the release lacks what any release drops: they
    are there for facts that another release wrote.
    """
    known = frozenset(one for one in dialects if one is not None)
    return _of(known, others=True) if None not in dialects else _of(frozenset())


def _packed_keys(name: str) -> AliasFunction:
    def keys_of(*texts: str) -> Iterator[Drop | Unreadable]:
        for text in texts:
            try:
                yield name, unpack(text)
            except ValueError:
                yield Unreadable(text)

    return keys_of


def _how_many(function: AliasFunction) -> tuple[int, int | None]:
    least = most = 0
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return least, None
        most += 1
        least += parameter.default is parameter.empty
    return least, most


def _rooms_and_users(least: int, most: int | None) -> list[list[str]]:
    longest = least + 2 if most is None else most
    words = ["!room:one", *(f"@user{number}:server{number}" for number in range(1, longest))]
    return [words[:length] for length in range(least, longest + 1)]


def _examples(name: str, yields: Iterable[Iterable[Drop | Unreadable]]) -> tuple[Invalidation, ...]:
    found: dict[Invalidation, None] = {}
    for drops in yields:
        for drop in drops:
            if isinstance(drop, Unreadable):
                raise ConfigError(f"{name} cannot read its sample {drop.key!r}; pass readable samples=")
            for example in invalidations(drop):
                if not isinstance(example.key, tuple | None):
                    raise ConfigError(
                        f"{name} yields {example.key!r} as a key, which must be a tuple or None"
                    )
                found[example] = None
    return tuple(found)


def invalidations(drop: Drop) -> list[Invalidation]:
    """The single invalidations of a drop."""
    cache, keys = drop
    return [Invalidation(cache, key) for key in (keys if isinstance(keys, list) else [keys])]


def pack(key: tuple[str, ...]) -> str:
    """Pack a key into one string, with the spaces of real writers."""
    return jsontext.dumps(key, spaced=True).decode("ascii")


def unpack(text: str) -> tuple[str, ...]:
    """Unpack a key. Raises ValueError if the text is not a list of strings."""
    try:
        return _packed.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(f"{text!r} is not a list of strings: {error}") from error
