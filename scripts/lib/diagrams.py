"""The diagrams of the manual: blocks of Mermaid, each with an SVG and a title for screen readers."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Diagram", "checksum", "diagrams", "diagrams_of", "replace_diagrams"]

DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"

_BLOCK: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE: Final = re.compile(r"^ *accTitle: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Diagram:
    """One diagram: its source, its title and its picture."""

    source: str
    title: str
    image: Path


def diagrams_of(page: Path) -> Iterator[Diagram]:
    """Yield the diagrams of a page."""
    for number, found in enumerate(_BLOCK.finditer(page.read_text("utf-8")), start=1):
        yield _diagram(page, number, found[1])


def diagrams() -> Iterator[Diagram]:
    """Yield the diagrams of the manual."""
    for page in sorted(DOCS.rglob("*.md")):
        yield from diagrams_of(page)


def checksum(source: str) -> str:
    """Return the checksum of a source, which the SVG holds: it tells whether the source has changed since."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def replace_diagrams(page: Path, markdown: str) -> str:
    """Replace the diagrams in the Markdown of a page by references to their pictures."""
    numbers = iter(range(1, 1_000))

    def replace(found: re.Match[str]) -> str:
        one = _diagram(page, next(numbers), found[1])
        up = "../" * len(page.relative_to(DOCS).parent.parts)
        return f"![{one.title}]({up}{one.image.relative_to(DOCS).as_posix()})"

    return _BLOCK.sub(replace, markdown)


def _diagram(page: Path, number: int, source: str) -> Diagram:
    title = _TITLE.search(source)
    return Diagram(source, title[1] if title else "", DOCS / "images" / f"{page.stem}-{number}.svg")
