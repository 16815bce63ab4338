"""The manual as a site: it builds, its links lead somewhere, and a screen reader can read it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.chromium import Chromium, find_chromium
from scripts.docs import build
from scripts.lib.diagrams import checksum, diagrams
from scripts.lib.manual import is_built, pages
from scripts.lib.site_versions import add_version

ROOT: Final = Path(__file__).resolve().parent.parent

CONTRAST: Final = """
(() => {
  const parse = color => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (top, under) => top.slice(0, 3).map((one, i) => one * top[3] + under[i] * (1 - top[3]));
  const light = color => {
    const [r, g, b] = color.map(one => one / 255)
      .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement)
      layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const found = new Set();
  for (const element of document.querySelectorAll("article *")) {
    const has_text = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const is_shown = element.checkVisibility({opacityProperty: true}) && !element.closest(".headerlink");
    if (!has_text || !is_shown) continue;
    const style = getComputedStyle(element);
    const under = behind(element);
    const [a, b] = [light(over(parse(style.color), under)), light(under)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const is_large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (is_large ? 3 : 4.5))
      found.add(`${element.tagName}.${element.className}: ${ratio.toFixed(2)} (${style.color})`);
  }
  return [...found];
})()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as scripts/site builds it."""
    pytest.importorskip("material", reason="the extra docs is not installed; scripts/site installs it")
    folder = tmp_path_factory.mktemp("site")
    build()
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_built_site_has_no_findings(site: Path) -> None:
    """Names, labels, headings, languages, anchors, links, and nothing from other servers."""
    pytest.importorskip("html5lib")
    from scripts.lib.site_check import check_site

    assert list(check_site(site)) == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("this machine has no Chromium")
    with Chromium(program) as started:
        yield started


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", ["index.html", "howto/replicas.html", "reference/library.html"])
def test_text_has_contrast(site: Path, browser: Chromium, page: str, is_dark: bool) -> None:
    """4.5 to 1, or 3 to 1 for large text, as WCAG 2 asks at level AA."""
    tab = browser.tab(1200, 900, is_dark=is_dark)
    tab.open((site / page).as_uri())
    tab.value("localStorage.clear()")  # the choice of another case
    tab.open((site / page).as_uri())

    tab.wait_until(f"document.body.dataset.mdColorScheme == '{'slate' if is_dark else 'default'}'")
    assert tab.value(CONTRAST) == []


def parsed(html: str) -> Any:
    html5lib = pytest.importorskip("html5lib")
    return html5lib.parse(html, namespaceHTMLElements=False)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("<h1>a</h1>", []),
        ("<h1>a</h1><img src=x.png>", ["a picture has no alt text: x.png"]),
        ("<h1>a</h1><img src=x.png alt=words>", []),
        ("<h1>a</h1><h3>b</h3>", ["the heading 'b' skips a level"]),
        ("<h2>a</h2>", ["there are 0 headings of the first level"]),
        ("<h1>a</h1><a href=b></a>", ["a a has no name: b"]),
        ("<h1>a</h1><a href=b><img src=x.png alt=words></a>", []),
        ("<h1>a</h1><button class=b></button>", ["a button has no name: b"]),
        ("<h1>a</h1><input id=i>", ["a field has no label: i"]),
        ("<h1>a</h1><label for=i>b</label><input id=i>", []),
        ("<h1>a</h1><table><tr><td>b</table>", ["a table has no head"]),
        ("<h1>a</h1><p tabindex=3>b", ["a tabindex above 0 changes the order of the keyboard: 3"]),
        ("<h1 id=a>a</h1><p id=a>b", ["two elements have the id a"]),
    ],
)
def test_a_page_is_checked(body: str, found: list[str]) -> None:
    """Each rule finds its fault, and nothing else."""
    tree = parsed(f"<!doctype html><html lang=en><title>t</title><main>{body}</main>")
    from scripts.lib.site_check import check_page

    assert found == list(check_page(tree))


def test_a_link_is_followed(tmp_path: Path) -> None:
    """To a file, and to a heading in it; other servers may only be linked to."""
    parsed("")
    from scripts.lib.site_check import check_site

    head = "<!doctype html><html lang=en><title>t</title><main><a href=#a>skip</a><h1 id=a>a</h1>"
    (tmp_path / "a.html").write_text(
        f"{head}<a href=b.html#a>b</a> <a href=b.html#c>c</a> <a href=d.html>d</a>"
        " <a href=https://example.org>e</a><script src=https://example.org/s.js></script>",
        "utf-8",
    )
    (tmp_path / "b.html").write_text(head, "utf-8")

    assert [
        "a.html: a link leads to no heading: b.html#c",
        "a.html: a link leads nowhere: d.html",
        "a.html: a script is loaded from another site: https://example.org/s.js",
    ] == list(check_site(tmp_path))


def test_each_diagram_has_a_picture_of_today() -> None:
    """Otherwise: scripts/diagrams.py."""
    for one in diagrams():
        assert one.title, one.image
        assert f"<!-- {checksum(one.source)} -->" in one.image.read_text("utf-8"), one.image


def test_each_picture_of_the_manual_is_used() -> None:
    """In one of its sizes and colors: nobody notices that another picture is out of date."""
    text = "".join(page.read_text("utf-8") for page in pages() if not is_built(page))
    shown = {one.image.name for one in diagrams()}
    for path in (ROOT / "docs" / "images").iterdir():
        name = path.name.replace("-phone.", ".").replace("-dark.", ".")
        assert name in shown or f"images/{name})" in text, path


def test_versions_of_the_site_are_listed_with_the_newest_first(tmp_path: Path) -> None:
    """By their numbers, whatever the order in which they are added; the folder leads to the newest."""
    site, folder = tmp_path / "site", tmp_path / "versions"
    site.mkdir()
    for version in ("26.9.0", "26.11.0", "26.10.1", "26.9.0"):
        (site / "index.html").write_text(version, "utf-8")
        add_version(site, folder, version)

    listed = json.loads((folder / "versions.json").read_text("utf-8"))
    assert ["26.11.0", "26.10.1", "26.9.0"] == [one["version"] for one in listed]
    assert [["latest"], [], []] == [one["aliases"] for one in listed]
    assert (folder / "26.9.0" / "index.html").read_text("utf-8") == "26.9.0"
    assert "url=26.11.0/index.html" in (folder / "index.html").read_text("utf-8")
