"""Checks that the built site works with a screen reader, with a keyboard and without a network.

    site_check.py FOLDER

prints a line for each finding, and ends with 1 if there is one. The rules are those of axe that need
only HTML; tests/test_site.py checks the contrast of colors.
"""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import html5lib

__all__ = ["check_page", "check_site"]

VOID_LINKS: Final = ("mailto:", "data:", "javascript:")
HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")
NAMED: Final = ("a", "button", "summary")
FIELDS: Final = ("input", "select", "textarea")


def check_site(folder: Path) -> Iterator[str]:
    """Yield a line for each finding in the pages of a folder."""
    trees = {
        path: html5lib.parse(path.read_text("utf-8"), namespaceHTMLElements=False)
        for path in sorted(folder.rglob("*.html"))
    }
    anchors = {path: {one.get("id") for one in tree.iter() if one.get("id")} for path, tree in trees.items()}
    for path, tree in trees.items():
        where = path.relative_to(folder).as_posix()
        if path.name != "404.html" and not _has_skip_link(tree):
            yield f"{where}: no link at the beginning skips to the content"
        for finding in check_page(tree):
            yield f"{where}: {finding}"
        for finding in _check_links(path, tree, anchors, folder):
            yield f"{where}: {finding}"


def check_page(tree: Any) -> Iterator[str]:
    """Yield the findings in one page, which html5lib has parsed without namespaces."""
    if not tree.get("lang"):
        yield "the page has no lang"
    title = tree.find("head/title")
    if title is None or not _text(title):
        yield "the page has no title"
    yield from _check_names(tree)
    yield from _check_headings(tree)
    yield from _check_ids(tree)
    if tree.find(".//main") is None and tree.find(".//*[@role='main']") is None:
        yield "the page has no main part"


def _has_skip_link(tree: Any) -> bool:
    return any(one.get("href", "").startswith("#") for one in list(tree.iter("a"))[:3])


def _check_names(tree: Any) -> Iterator[str]:
    labelled = {one.get("for") for one in tree.iter("label")}
    for one in tree.iter():
        if not isinstance(one.tag, str):
            continue
        match one.tag:
            case "img" if one.get("alt") is None or not one.get("alt", "").strip():
                yield f"a picture has no alt text: {one.get('src')}"
            case tag if tag in NAMED and _is_used(one) and not _name(one):
                yield f"a {tag} has no name: {one.get('href') or one.get('class')}"
            case tag if tag in FIELDS and one.get("type") != "hidden" and _is_used(one):
                if not (_name(one) or one.get("id") in labelled or one.get("placeholder")):
                    yield f"a field has no label: {one.get('id') or one.get('class')}"
            case "table" if one.find(".//th") is None:
                yield "a table has no head"
            case "iframe" if not one.get("title"):
                yield "a frame has no title"
        tabindex = one.get("tabindex", "0")
        if tabindex.lstrip("-").isdigit() and int(tabindex) > 0:
            yield f"a tabindex above 0 changes the order of the keyboard: {tabindex}"


def _check_headings(tree: Any) -> Iterator[str]:
    levels = [(int(one.tag[1]), _text(one)) for one in tree.iter() if one.tag in HEADINGS]
    if [level for level, _ in levels].count(1) != 1:
        yield f"there are {[level for level, _ in levels].count(1)} headings of the first level"
    for (before, _), (level, text) in pairwise(levels):
        if level > before + 1:
            yield f"the heading {text!r} skips a level"


def _check_ids(tree: Any) -> Iterator[str]:
    seen: set[str] = set()
    for one in tree.iter():
        name = one.get("id")
        if name and name in seen:
            yield f"two elements have the id {name}"
        if name:
            seen.add(name)


def _check_links(path: Path, tree: Any, anchors: dict[Path, set[str]], folder: Path) -> Iterator[str]:
    for one in tree.iter():
        for attribute in ("href", "src"):
            link = one.get(attribute)
            if link is None or link.startswith(VOID_LINKS):
                continue
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if one.tag != "a":
                    yield f"a {one.tag} is loaded from another site: {link}"
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if path.name == "404.html" and parts.path.startswith("/"):
                target = folder / parts.path.lstrip("/")
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"a link leads nowhere: {link}"
            elif (
                parts.fragment
                and not parts.fragment.startswith("__")  # of the theme's scripts
                and unquote(parts.fragment) not in anchors.get(target, {unquote(parts.fragment)})
            ):
                yield f"a link leads to no heading: {link}"


def _is_used(element: Any) -> bool:
    """Whether people meet the element: not hidden, no mere anchor, no switch that the theme hides."""
    is_anchor = element.tag == "a" and element.get("href") is None
    is_switch = "md-toggle" in element.get("class", "")
    is_hidden = element.get("hidden") is not None or element.get("aria-hidden") == "true"
    return not (is_anchor or is_switch or is_hidden)


def _name(element: Any) -> str:
    """Return the name of the element, as a screen reader says it."""
    words = element.get("aria-label") or element.get("title") or _text(element)
    pictures = "".join(one.get("alt") or "" for one in element.iter("img"))
    return f"{words}{pictures}".strip()


def _text(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())


def main() -> int:
    """Print the findings in the folder that is the argument; return 1 if there are any."""
    [folder] = sys.argv[1:]
    findings = list(check_site(Path(folder).resolve()))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
