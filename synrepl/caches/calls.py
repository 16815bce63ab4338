"""Cached calls: return a cached value, or compute and keep it. Equal calls have equal keys."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from inspect import Parameter
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from synrepl.caches.entries import AGAIN, MISSING, Entries, Entry, IWaiter, Key
from synrepl.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class Arguments:
    """The parameters of a function, without the instance of a method. A key has a value for each, in order.

    `full` is the number of positional arguments that form a key unchanged; -1 if the function has
    keyword-only parameters.
    """

    __slots__ = ("name", "names", "full", "_signature", "_tails")

    def __init__(self, function: Callable[..., Any], *, is_method: bool = False) -> None:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[is_method:]
        self.name: str = getattr(function, "__name__", repr(function))
        for parameter in parameters:
            if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise ConfigError(
                    f"{self.name} cannot be cached: {parameter} takes any number of arguments,"
                    " but all keys of a cache have the same length"
                )
        self._signature = signature.replace(parameters=parameters)
        self.names = tuple(parameter.name for parameter in parameters)
        positional = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
        self.full = len(positional) if len(positional) == len(parameters) else -1
        # The defaults that complete a call, by its number of positional arguments. Other calls are bound.
        self._tails: dict[int, Key] = {}
        for count in range(len(positional), -1, -1):
            tail = tuple(parameter.default for parameter in parameters[count:])
            if Parameter.empty in tail:
                break
            self._tails[count] = tail

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        """Return the key of a call. Raises TypeError, as the call would, if the arguments do not fit."""
        if not kwargs:
            tail = self._tails.get(len(args))
            if tail is not None:
                return args + tail
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def explain_unhashable(self, key: Key, error: TypeError) -> TypeError:
        """Return an exception that names the unhashable argument of this key; `error` if there is none."""
        for name, argument in zip(self.names, key, strict=True):
            try:
                hash(argument)
            except TypeError as why:
                return TypeError(f"{self.name}() is cached, so {name} must be hashable: {why}")
        return error


class Plan(msgspec.Struct, kw_only=True):
    """The function to call on a miss, and how; shared by all instances of a class.

    `waiter` creates an object that a caller awaits while another computes the value. An exception of type
    `abandoned`, or one that is not an Exception, means that the computing caller went away, not that the
    computation failed.
    """

    name: str
    function: Callable[..., Any]
    arguments: Arguments
    waiter: Callable[[], IWaiter]
    abandoned: tuple[type[BaseException], ...]
    full: int = -1

    def __post_init__(self) -> None:
        self.full = self.arguments.full


class BaseCalls(Generic[P, T]):
    """One set of entries, and the function that fills it; for a method, `first` has the instance."""

    __slots__ = ("_plan", "_entries", "_first")

    def __init__(self, plan: Plan, entries: Entries, first: tuple[Any, ...] = ()) -> None:
        self._plan = plan
        self._entries = entries
        self._first = first

    def __getattr__(self, name: str) -> Any:
        # Bound methods are created on every access, so these attributes are looked up, not stored.
        if name == "__wrapped__":
            return functools.partial(self._plan.function, *self._first)
        if name in functools.WRAPPER_ASSIGNMENTS:
            return getattr(self._plan.function, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def name(self) -> str:
        """The name of the cache in invalidations."""
        return self._plan.name

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Drop the entry of this call in this process only; `Changes` tells other processes."""
        key = self._plan.arguments.key(args, kwargs)
        try:
            hash(key)  # as an empty dict does not
            self._entries.drop(key)
        except TypeError as error:
            raise self._plan.arguments.explain_unhashable(key, error) from None
        self._entries.counters.invalidations += 1

    def invalidate_all(self) -> None:
        """Drop all entries in this process; for a method, those of this instance."""
        self._entries.clear()
        self._entries.counters.invalidations += 1

    def _known(self) -> Callable[[Key], Entry | None]:
        """Return a function that finds the entry of positional arguments, if these alone can be a key."""
        nothing: dict[Key, Entry] = {}
        return nothing.get if self._plan.full < 0 else self._entries.values.get

    def _dress(self, call: C) -> C:
        """Give this function the attributes of a cached one."""
        dressed: Any = functools.update_wrapper(call, self._plan.function)
        dressed.name, dressed.invalidate, dressed.invalidate_all = (
            self.name,
            self.invalidate,
            self.invalidate_all,
        )
        return call


class Calls(BaseCalls[P, T]):
    """Calls of a plain function."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        key: Key = (
            args if len(args) == self._plan.full and not kwargs else self._plan.arguments.key(args, kwargs)
        )
        try:
            value: T = self._entries.get(key)
        except TypeError as error:
            raise self._plan.arguments.explain_unhashable(key, error) from None
        if value is not MISSING:
            return value
        computation = self._entries.begin(key)
        try:
            value = self._plan.function(*self._first, *args, **kwargs)
            if hasattr(value, "__await__"):
                raise TypeError(
                    f"{self._plan.arguments.name}() is cached, but returned {type(value).__name__}, which is"
                    " awaitable: define it with `async def`, so that its result is cached"
                )
        except BaseException:
            self._entries.give_up(computation)
            raise
        self._entries.keep(computation, value)
        return value

    def as_function(self) -> Callable[P, T]:
        """Return a function that does the same. It returns a known value in a third of the time."""
        find, counters, call_any = self._known(), self._entries.counters, self._call

        def call(*args: Any, **kwargs: Any) -> T:
            try:
                entry = find(args)
            except TypeError:
                entry = None  # `call_any` raises it again, with the name of the argument
            if entry is not None and not kwargs:
                counters.calls = entry.used_at = counters.calls + 1
                return entry.value  # type: ignore[no-any-return]
            return call_any(args, kwargs)

        return self._dress(call)


class AsyncCalls(BaseCalls[P, T]):
    """Calls of a coroutine function. Concurrent calls of one key share a computation, until invalidated."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._call(args, kwargs)

    # A coroutine that returns at once costs less than any awaitable written in Python, and it looks up its
    # value when it is awaited, not before.
    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        key: Key = (
            args if len(args) == self._plan.full and not kwargs else self._plan.arguments.key(args, kwargs)
        )
        try:
            value: T = self._entries.get(key)
        except TypeError as error:
            raise self._plan.arguments.explain_unhashable(key, error) from None
        if value is not MISSING:
            return value
        while (computation := self._entries.computing(key)) is not None:
            answer = await computation.wait(self._plan.waiter())
            if answer is not AGAIN:
                self._entries.counters.calls += 1
                return answer  # type: ignore[no-any-return]
            value = self._entries.get(key)
            if value is not MISSING:
                return value
        return await self._compute(key, args, kwargs)

    async def _compute(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        computation = self._entries.begin(key)
        try:
            value: T = await self._plan.function(*self._first, *args, **kwargs)
        except BaseException as error:
            self._entries.give_up(computation)
            if isinstance(error, Exception) and not isinstance(error, self._plan.abandoned):
                computation.fail(error)
            else:
                computation.retry()
            raise
        self._entries.keep(computation, value)
        computation.resolve(value)
        return value

    def as_function(self) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return a coroutine function that does the same. It returns a known value in half of the time."""
        find, counters, call_any = self._known(), self._entries.counters, self._call

        async def call(*args: Any, **kwargs: Any) -> T:
            try:
                entry = find(args)
            except TypeError:
                entry = None
            if entry is not None and not kwargs:
                counters.calls = entry.used_at = counters.calls + 1
                return entry.value  # type: ignore[no-any-return]
            return await call_any(args, kwargs)

        return self._dress(call)
