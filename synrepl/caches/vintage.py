"""What a release of Synapse means by the names on the wire, beyond the caches that it has."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from synrepl.caches.invalidation import Invalidation
from synrepl.errors import ConfigError

__all__ = ["Drop", "Unreadable", "Vintage"]

Drop = tuple[str, tuple[str, ...] | None]


class Unreadable(msgspec.Struct, frozen=True):
    """What an alias yields for a key that it cannot read, and which is therefore left out."""

    key: str


AliasFunction = Callable[..., Iterable[Drop | Unreadable]]
ImpliedFunction = Callable[[Any], Iterable[Drop]]
A = TypeVar("A", bound=AliasFunction)
B = TypeVar("B", bound=ImpliedFunction)


class _Alias(msgspec.Struct, frozen=True):
    """An alias, how many keys it takes, and what it yields for its samples."""

    function: AliasFunction
    least: int
    most: int | None
    examples: tuple[Invalidation, ...]
    reaches: frozenset[str]


class _Implied(msgspec.Struct, frozen=True):
    """What rows of a stream imply, and what that is for its samples."""

    function: ImpliedFunction
    examples: tuple[Invalidation, ...]
    reaches: frozenset[str] | None


class Vintage:
    """Aliases, which stand for entries of several caches, and streams whose rows imply that entries are gone.

    A plain name is the cache of that name. An alias is a function of keys, an implication one of a row; both
    yield pairs of a cache and a key (None: all of it)::

        mine = NEWEST.extended("mine")

        @mine.alias("my_room_fake")
        def my_room(room_id: str) -> Iterator[Drop]:
            yield "get_my_room", (room_id,)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._aliases: dict[str, _Alias] = {}
        self._implied: dict[str, _Implied] = {}
        # What an extended vintage has from its origin may be replaced; what it says itself is said once.
        self._said: set[tuple[str, str]] = set()
        self._is_sealed = False

    def __repr__(self) -> str:
        return f"Vintage({self.name!r})"

    # -- building one ----------------------------------------------------------------------------------

    def extended(self, name: str) -> "Vintage":
        """A copy that can be added to, and in which aliases and implications can be replaced."""
        copy = Vintage(name)
        copy._aliases.update(self._aliases)
        copy._implied.update(self._implied)
        return copy

    def seal(self) -> None:
        """Nothing changes any more: others rely on it."""
        self._is_sealed = True

    def alias(self, name: str, *, samples: Iterable[Sequence[str]] | None = None) -> Callable[[A], A]:
        """The decorated function says what `name` stands for, given its keys.

        It is tried on `samples`, which are keys, to learn which caches it reaches; they must bring out all
        that it can yield. By default it is tried on a room, alone and with users.
        """

        def add(function: A) -> A:
            self._say("alias", name)
            least, most = _how_many(function)
            tried = _rooms_and_users(least, most) if samples is None else samples
            try:
                examples = _examples(name, (function(*keys) for keys in tried))
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"alias {name} of {self.name} cannot be tried on its samples: {error}"
                ) from error
            reaches = frozenset(example.cache for example in examples)
            self._aliases[name] = _Alias(function, least, most, examples, reaches)
            return function

        return add

    def implied(self, stream: str, *, samples: Collection[Any] = ()) -> Callable[[B], B]:
        """The decorated function says what a row of `stream` implies.

        It is tried on `samples`, which are rows, to learn which caches it reaches; they must bring out all
        that it can yield. Without them it is taken to reach every cache there is.
        """

        def add(function: B) -> B:
            if stream == "caches":
                raise ConfigError("what rows of caches mean is said by aliases")
            self._say("implied", stream)
            examples = _examples(stream, (function(row) for row in samples))
            reaches = frozenset(example.cache for example in examples) if samples else None
            self._implied[stream] = _Implied(function, examples, reaches)
            return function

        return add

    def _say(self, kind: str, name: str) -> None:
        if self._is_sealed:
            raise ConfigError(
                f"vintage {self.name} is not to be changed; change a copy: {self.name}.extended(...)"
            )
        if (kind, name) in self._said:
            raise ConfigError(f"vintage {self.name} says twice what {name} means")
        self._said.add((kind, name))

    # -- asking it -------------------------------------------------------------------------------------

    @property
    def aliases(self) -> Mapping[str, AliasFunction]:
        """Aliases by name."""
        return MappingProxyType({name: alias.function for name, alias in self._aliases.items()})

    @property
    def implications(self) -> Mapping[str, ImpliedFunction]:
        """Implications by stream."""
        return MappingProxyType({stream: implied.function for stream, implied in self._implied.items()})

    def is_alias(self, name: str) -> bool:
        """Whether this name stands for others; it may be that of a cache, too."""
        return name in self._aliases

    def expand(
        self,
        cache_func: str,
        keys: Sequence[str] | None,
        *,
        unreadable: Callable[[Unreadable], object] = lambda key: None,
    ) -> Iterator[Invalidation]:
        """What a row of ``caches`` means. Keys that cannot be read are left out and told to `unreadable`.

        Raises ValueError for keys that this alias does not take.
        """
        alias = self._aliases.get(cache_func)
        if alias is None or (keys is None and cache_func in alias.reaches):
            yield Invalidation(cache_func, None if keys is None else tuple(keys))
            return
        if keys is None:
            raise ValueError(f"{cache_func} is no cache: it has no `all`, so its keys cannot be null")
        if len(keys) < alias.least or (alias.most is not None and len(keys) > alias.most):
            wanted = f"{alias.least}" + (" or more" if alias.most is None else "")
            raise ValueError(f"{cache_func} takes {wanted} keys, not {len(keys)}")
        for drop in alias.function(*keys):
            if isinstance(drop, Unreadable):
                unreadable(drop)
            else:
                yield Invalidation(*drop)

    def implied_by(self, stream: str, row: Any) -> Iterator[Invalidation]:
        """What a typed row of a stream implies."""
        implied = self._implied.get(stream)
        if implied is not None:
            for drop in implied.function(row):
                yield Invalidation(*drop)

    def reaches(self, alias: str) -> frozenset[str]:
        """The caches that an alias can drop something of; a plain name reaches itself."""
        found = self._aliases.get(alias)
        return frozenset([alias]) if found is None else found.reaches

    def reached_by(self, stream: str) -> frozenset[str] | None:
        """The caches that rows of this stream can drop something of; None: perhaps any.

        Rows of ``caches`` reach any cache by its name; given here are those reached by aliases.
        """
        if stream == "caches":
            return frozenset().union(*(alias.reaches for alias in self._aliases.values()))
        implied = self._implied.get(stream)
        return frozenset() if implied is None else implied.reaches

    def examples(self) -> Iterator[tuple[str, Invalidation]]:
        """What the samples yield, each with the alias or stream that it is of."""
        for name, alias in self._aliases.items():
            yield from ((name, example) for example in alias.examples)
        for stream, implied in self._implied.items():
            yield from ((stream, example) for example in implied.examples)


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
                raise ConfigError(f"{name} cannot read its sample {drop.key!r}; give samples= that it can")
            found[Invalidation(*drop)] = None
    return tuple(found)
