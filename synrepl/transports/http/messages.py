"""Answers of routes that daemons request from each other."""

from collections.abc import Mapping

import msgspec


class DigestsAnswer(msgspec.Struct, frozen=True):
    """The digests of a log at some serials (None: unknown), and its head."""

    epoch: int
    serial: int
    history: str
    digests: Mapping[int, str | None]
