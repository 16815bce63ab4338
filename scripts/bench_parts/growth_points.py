"""Points of the benchmark `growth`: what grows, how far, and what it costs compared with the first point."""

from scripts.bench_parts.measuring import Result, number

__all__ = ["Axis", "Point"]


class Point(Result, kw_only=True):
    """A figure at one point of an axis, at which `at` of what it is named after were there.

    `of_first` is the cost as a multiple of that at the first point of the axis. Of what was not measured the
    figure may be empty: then all are meant.
    """

    axis: str
    at: int
    figure: str
    of_first: float | None = None

    def __str__(self) -> str:
        measured = () if self.value is None else (number(self.value), self.unit)
        return " ".join([f"{self.what}:", *measured, self.note])


class Axis:
    """What grows, while everything else stays as it is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._first: dict[str, float] = {}

    def point(self, at: int, figure: str, value: float, unit: str) -> Point:
        """Make a point. Of rates the cost is the time for one: a rate that halves has doubled the cost."""
        first = self._first.setdefault(figure, value)
        is_rate = unit.partition(" ")[0].endswith("/s")
        over, under = (first, value) if is_rate else (value, first)
        # A difference of two measured times may be lost in their noise, and even negative.
        of_first = over / under if min(first, value) > 0 else None
        return Point(
            what=f"{self._name} {at:,}: {figure}",
            value=value,
            unit=unit,
            note="" if of_first is None else f"{of_first:.2f} x",
            axis=self._name,
            at=at,
            figure=figure,
            of_first=of_first,
        )

    def unmeasured(self, at: int, why: str, figure: str = "", unit: str = "") -> Point:
        """Make a point that was not measured, with the reason."""
        return Point(
            what=f"{self._name} {at:,}" + f": {figure}" * bool(figure),
            value=None,
            unit=unit,
            note=f"not measured: {why}",
            axis=self._name,
            at=at,
            figure=figure,
        )
