"""Cache keys from the arguments of calls: equal calls have equal keys, however they are written."""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from synrepl.caches.entries import Key
from synrepl.errors import ConfigError

__all__ = ["Arguments"]


class Arguments:
    """The parameters of a function. A key has all arguments, with defaults, in the order of the signature.

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
        """Return an exception that names the unhashable argument, for the `error` of a lookup of this key."""
        for name, argument in zip(self.names, key, strict=True):
            try:
                hash(argument)
            except TypeError as why:
                return TypeError(f"{self.name}() is cached, so {name} must be hashable: {why}")
        return error
