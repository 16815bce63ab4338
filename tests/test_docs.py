"""The manual: what is derived from the code says what the code does."""

import ast
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from scripts.docs import PAGES, STORED, build, metrics
from scripts.lib.manual import DOCS, pages
from scripts.lib.references import anchors_of
from synrepl.base.metrics import Metrics
from synrepl.config import settings
from synrepl.rooms import rooms

ROOT = Path(__file__).resolve().parent.parent

LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


MANUAL = [ROOT / "README.md", *pages()]


@pytest.fixture(autouse=True, scope="module")
def _reference() -> None:
    """The pages that are not in the repository."""
    build()


@pytest.mark.parametrize("name", STORED)
def test_a_derived_file_is_up_to_date(name: str) -> None:
    """Otherwise: scripts/docs."""
    assert (DOCS / name).read_text("utf-8") == PAGES[name]()


def test_the_manual_and_a_scrape_name_the_same_metrics() -> None:
    """An operator finds every number that is told about, and is told about every number."""
    told = set(re.findall(r"^\| `(synrepl_\w+)`", metrics(), re.MULTILINE))

    registry = CollectorRegistry()
    for one in (Metrics, *(room.metrics_class() for room in rooms())):
        if one is not None:
            one(registry)
    scraped = generate_latest(registry).decode()

    found = set(re.findall(r"^# HELP (\w+)", scraped, re.MULTILINE))
    # The client adds a _created to each counter, when it has a value.
    assert told == {name for name in found if not name.endswith("_created")}


def test_every_stream_and_command_has_a_heading() -> None:
    """Whatever else changes, nothing is left out."""
    from synrepl.declarations import all_commands
    from synrepl.streams.table import StreamTable

    assert [stream.name for stream in StreamTable.default()] == _headings("reference/streams.md")
    assert [one.NAME for one in all_commands()] == _headings("reference/wire.md")


def _headings(name: str) -> list[str]:
    return re.findall(r"^## (\S+)$", (DOCS / name).read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_links_within_the_manual_lead_somewhere(page: Path) -> None:
    """Links to other pages and files; those to the net are not followed."""
    targets = [found[1] for found in LINK.finditer(page.read_text("utf-8")) if found[1]]

    assert [] == [target for target in targets if not (page.parent / target).exists()]


NAMED_FILE = re.compile(r"(?<![\w/.])((?:synrepl|scripts|tests|contrib)/(?!\d)[\w/.*-]+)")


@pytest.mark.parametrize(
    "page", [*MANUAL, ROOT / "CONTRIBUTING.md", ROOT / "pyproject.toml"], ids=lambda page: page.name
)
def test_files_of_the_tree_that_are_named_exist(page: Path) -> None:
    """Who adds something goes where the page sends them."""
    named = [found[1].rstrip(".") for found in NAMED_FILE.finditer(page.read_text("utf-8"))]

    assert [] == [name for name in named if not any(ROOT.glob(name))]


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_links_to_parts_of_pages_lead_somewhere(page: Path) -> None:
    """A heading that was renamed takes its links along."""
    links = [(found[1], found[2][1:]) for found in LINK.finditer(page.read_text("utf-8")) if found[2]]
    targets = [(page.parent / name if name else page, fragment) for name, fragment in links]

    assert [] == [
        (target.name, fragment)
        for target, fragment in targets
        if target.suffix == ".md" and fragment not in anchors_of(target)
    ]


def test_the_table_of_contents_has_every_page() -> None:
    """A page that nothing links to is not read."""
    contents = ROOT / "docs" / "README.md"
    listed = {(contents.parent / found[1]).resolve() for found in LINK.finditer(contents.read_text("utf-8"))}

    assert [] == [page.name for page in pages() if page.parent != DOCS and page.resolve() not in listed]


def test_the_example_configuration_has_every_setting() -> None:
    """It says so in its first line."""
    example = (ROOT / "contrib/config.example.yaml").read_text("utf-8")
    named = set(re.findall(r"^#?([a-z_]+):", example, re.MULTILINE))

    assert {setting.name for setting in settings()} == named


def test_files_that_may_compare_dialects_exist() -> None:
    """A file that was renamed must not leave a hole in the check."""
    from scripts.lib.dialect_comparisons import ALLOWED

    assert [] == [name for name in ALLOWED if not (ROOT / "synrepl" / name).exists()]


def test_the_source_cites_no_document_that_is_not_here() -> None:
    """Whoever reads a release cannot look it up."""
    cited = re.compile(r"\(facts: (the TCP|TCP|wire history|streams of)")
    files = [*(ROOT / "synrepl").rglob("*.py"), *pages()]

    assert [] == [str(file) for file in files if cited.search(file.read_text("utf-8"))]


def test_signatures_and_examples_of_the_library_are_python() -> None:
    """Those that are doctests are run, too."""
    text = (DOCS / "reference/library.md").read_text("utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        block = found[1]
        if re.match(r"class |def |async def ", block) and ":\n" not in block:
            block = block.rstrip().replace("class ", "def ", 1) + ": ..."
        ast.parse(block)


def test_the_site_has_every_page() -> None:
    """`scripts/site` fails otherwise, but takes longer to say so."""
    listed = set(re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))

    assert {page.relative_to(DOCS).as_posix() for page in pages()} == listed
