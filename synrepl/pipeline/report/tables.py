"""Tables: complete as CSV with plain numbers, shortened on the page with formatted numbers."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from synrepl.html.humanize import number, printable, shortened
from synrepl.html.markup import Markup, details, element, text

__all__ = ["Column", "Table", "as_csv", "as_html", "folded", "named"]

Row = Mapping[str, Any]


class Column(msgspec.Struct, frozen=True):
    """A column: `key` is its name in rows and CSV, with the unit; `head` its title on the page, if shown.

    `shown` formats a value for the page; by default text is shortened and numbers are grouped.
    """

    key: str
    head: str = ""
    shown: Callable[[Any], object] | None = None


class Table(msgspec.Struct, frozen=True):
    """A table: rows by the keys of its columns. `name` is the name of its file."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]

    @property
    def file(self) -> str:
        """The name of the CSV file."""
        return f"{self.name}.csv"


def as_csv(table: Table) -> bytes:
    """Return the whole table as CSV. An unknown value is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([_plain(row.get(column.key)) for column in table.columns] for row in table.rows)
    return out.getvalue().encode("utf-8", "backslashreplace")


def as_html(
    table: Table, *, at_most: int = 50, extra: Mapping[str, Sequence[Markup]] | None = None
) -> Markup:
    """Render the table for the page; rows beyond `at_most` are only in the file.

    The table scrolls if there is no room. `extra` are columns of plots, before the second column.
    """
    columns = [column for column in table.columns if column.head]
    rows = table.rows[:at_most]
    columns = [column for column in columns if any(_said(column, row) not in {None, ""} for row in rows)]
    if not columns:
        return Markup()
    numbers = {
        column.key
        for column in columns
        if not column.key.endswith("_ms") and all(_is_number(row.get(column.key)) for row in rows)
    }
    pictures = extra or {}
    heads = [f'<th scope="col"{_kind(column, numbers)}>{escape(column.head)}</th>' for column in columns]
    heads[1:1] = [f'<th scope="col">{escape(head)}</th>' for head in pictures]
    lines = []
    for position, row in enumerate(rows):
        cells = [_cell(column, row.get(column.key), numbers) for column in columns]
        cells[1:1] = [f"<td>{drawn[position]}</td>" for drawn in pictures.values()]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    beyond = len(table.rows) - len(rows)
    more = f"; {beyond:,} more rows are in it" if beyond else ""
    files = Markup(f'<p class="files">{named(table.file)}{more}</p>')
    return Markup(f'<div class="slim" tabindex="0" role="region" aria-label="table">{body}</div>{files}')


def folded(summary: str, table: Table, *, at_most: int = 50) -> Markup:
    """Render the table, collapsed."""
    return details(summary, as_html(table, at_most=at_most)) if table.rows else Markup()


def named(file: str) -> Markup:
    """Render a link to a file of the report."""
    return element("a", file, href=file, download=file if file.endswith(".csv") else None)


def _plain(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _said(column: Column, row: Row) -> object:
    value = row.get(column.key)
    return value if column.shown is None or value is None else column.shown(value)


def _kind(column: Column, numbers: set[str]) -> str:
    return ' class="number"' if column.key in numbers else ""


def _cell(column: Column, value: Any, numbers: set[str]) -> str:
    kind = _kind(column, numbers)
    if value is None:
        return f"<td{kind}></td>"
    if column.shown is not None:
        return f"<td{kind}>{text(column.shown(value))}</td>"
    if isinstance(value, int | float):
        return f"<td{kind}>{number(value)}</td>"
    whole = str(value)
    shown = shortened(whole)
    title = f' title="{escape(printable(whole[:500]))}"' if shown != whole else ""
    return f"<td{kind}{title}>{escape(shown)}</td>"
