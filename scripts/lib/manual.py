"""The pages of the manual: those that people write, and those that `scripts/docs` builds from the code."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DOCS: Final = ROOT / "docs"

BUILT: Final = tuple(
    f"reference/{name}.md"
    for name in ("wire", "streams", "caches", "settings", "metrics", "cli", "http", "library")
)
"""They are not in the repository: `docs/reference/api.txt` shows a change of what they have."""


def pages() -> list[Path]:
    """Return all pages, whether the built ones are there or not."""
    written = {path for path in DOCS.rglob("*.md") if path.parent.name != "newsfragments"}
    return sorted(written | {DOCS / name for name in BUILT})


def is_built(page: Path) -> bool:
    """Whether this page is not in the repository."""
    return page.relative_to(DOCS).as_posix() in BUILT
