"""FollowerClock: the clock of a follower, which may get it after it was made."""

from collections.abc import Callable
from typing import Any

from synrepl.base.interfaces import IClock
from synrepl.errors import NotConnected


class FollowerClock:
    """Passes calls on to the clock `given`. Raises `NotConnected` while there is none."""

    def __init__(self, given: IClock | None) -> None:
        self.given = given

    @property
    def required(self) -> IClock:
        """The clock of this follower. Raises `NotConnected` if it has none yet."""
        if self.given is None:
            raise NotConnected("this follower has no clock: pass `clock`, or call `synrepl.connect` first")
        return self.given

    def seconds(self) -> float:
        """The time in seconds."""
        return self.required.seconds()

    def callLater(self, delay: float, callable: Callable[..., object], *args: Any, **kw: Any) -> Any:
        """As `twisted.internet.interfaces.IReactorTime.callLater`."""
        return self.required.callLater(delay, callable, *args, **kw)
