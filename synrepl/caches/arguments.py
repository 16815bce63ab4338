"""Arguments of calls as keys: the same call, however it is written, has the same key."""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from synrepl.caches.entries import Key
from synrepl.errors import ConfigError

__all__ = ["Arguments"]


class Arguments:
    """What a function takes. Its keys hold all of it, defaults filled in, in the order of the signature.

    `full` is the number of positional arguments that are a key as they are (-1: no number is).
    """

    __slots__ = ("name", "names", "full", "_signature", "_tails")

    def __init__(self, function: Callable[..., Any], *, is_method: bool = False) -> None:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[is_method:]
        self.name: str = getattr(function, "__name__", repr(function))
        for parameter in parameters:
            if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise ConfigError(
                    f"{self.name} cannot be cached: {parameter} may be any number of arguments,"
                    " and all keys of a cache have one length"
                )
        self._signature = signature.replace(parameters=parameters)
        self.names = tuple(parameter.name for parameter in parameters)
        positional = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
        self.full = len(positional) if len(positional) == len(parameters) else -1
        # What completes a call of so many positional arguments; calls not in here are bound with care.
        self._tails: dict[int, Key] = {}
        for count in range(len(positional), -1, -1):
            tail = tuple(parameter.default for parameter in parameters[count:])
            if Parameter.empty in tail:
                break
            self._tails[count] = tail

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        """The key of a call. Raises TypeError, as the call itself would, if the arguments do not fit."""
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

    def unhashable(self, key: Key, error: TypeError) -> TypeError:
        """What to raise instead of `error`, which a look-up of this key raised."""
        for name, argument in zip(self.names, key, strict=True):
            try:
                hash(argument)
            except TypeError as why:
                return TypeError(f"{self.name}() is cached, so {name} must be hashable: {why}")
        return error
