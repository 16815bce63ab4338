"""How two synrepl processes recognize each other on Synapse's wire, and what a follower tells of its log.

A follower of synrepl ends the name in NAME with a mark and the epochs of the log that it has followed.
Synapse's servers keep the whole line as the name (docs/reference/peers.md#tcp-extension). A server of synrepl
sends EPOCH, REWIND and MOVED only to a follower with the mark: Synapse never receives an unknown command.
"""

import re
from typing import Final

import msgspec

MARK: Final = "synrepl/1"

_MARKED: Final = re.compile(rf"(.*) {MARK}(?: (\S+))?", re.ASCII | re.DOTALL)
_EPOCHS: Final = re.compile(r"([\w-]{1,100})((?::\d{1,16}\.\d{1,18}\.\d{1,18})*)", re.ASCII)

MAX_STARTS: Final = 50
"""The most starts of epochs in an `EpochMark`, the newest ones: a line is bounded."""


class EpochMark(msgspec.Struct, frozen=True):
    """The epochs of the log `history`: each with its number, the serial after which it began, and when (ms).

    Epoch 1 is left out. Two logs have the same facts up to the first start that differs: two daemons that
    were promoted to the same epoch differ in the serial or in the time.
    """

    history: str
    starts: tuple[tuple[int, int, int], ...] = ()

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self.starts[-1][0] if self.starts else 1

    def __str__(self) -> str:
        return ":".join([self.history, *(".".join(map(str, start)) for start in self.starts)])

    @classmethod
    def parse(cls, text: str) -> "EpochMark | None":
        """Parse the result of `str`; None for anything else."""
        found = _EPOCHS.fullmatch(text)
        if found is None or found[2].count(":") > MAX_STARTS:
            return None
        starts = [tuple(map(int, start.split("."))) for start in found[2].split(":")[1:]]
        return cls(found[1], tuple((epoch, serial, at_ms) for epoch, serial, at_ms in starts))


class FollowerName(msgspec.Struct, frozen=True):
    """The text of NAME: `name`, whether it has the mark of synrepl, and the epochs of the log it followed."""

    name: str
    is_synrepl: bool = False
    epoch: EpochMark | None = None

    def __str__(self) -> str:
        parts = [self.name, MARK if self.is_synrepl else "", str(self.epoch or "")]
        return " ".join(filter(None, parts))

    @classmethod
    def parse(cls, text: str) -> "FollowerName":
        """Parse the result of `str`, or a name without the mark.

        >>> FollowerName.parse("pusher1 synrepl/1 5f1c:2.1200.1490197670513").epoch
        EpochMark(history='5f1c', starts=((2, 1200, 1490197670513),))
        >>> FollowerName.parse("worker 1")
        FollowerName(name='worker 1', is_synrepl=False, epoch=None)
        """
        found = _MARKED.fullmatch(text)
        if found is None:
            return cls(text)
        return cls(found[1], is_synrepl=True, epoch=EpochMark.parse(found[2] or ""))
