"""Hooks of mkdocs: the version, links to files of the checkout, diagrams, and anchors as on code hosts."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lib.diagrams import replace_diagrams  # noqa: E402  # after the path

SHIM_URL: Final = "https://unpkg.com/iframe-worker/shim"
SHIM: Final = "assets/iframe-worker.js"

_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def slugify(heading: str, separator: str) -> str:
    """Return the anchor of a heading, as on code hosts: the links of the manual are written for these."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Show the version on each page, and use the anchors of `slugify`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    config.copyright = f"synrepl {project['version']}"
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    return config


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """Turn links to files of the checkout into their paths, and diagrams into pictures."""
    docs = ROOT / "docs"
    folder = (docs / page.file.src_uri).parent
    markdown = replace_diagrams(docs / page.file.src_uri, markdown)

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(docs) and "newsfragments" not in target.parts:
            return link[0]
        path = target.relative_to(ROOT).as_posix()
        return f"{link[1]} (`{path}`)" if path not in link[1] else link[1]

    return _LINK.sub(replace, markdown)


def on_post_page(output: str, page: Any, **_others: Any) -> str:
    """Load the theme's shim from the site itself; a site opened as files cannot be searched without it."""
    return output.replace(SHIM_URL, "../" * page.file.dest_uri.count("/") + SHIM)


def on_post_template(output: str, **_others: Any) -> str:
    """Load the shim from the site itself on the error page as well, which is at the root of the site."""
    return output.replace(SHIM_URL, f"/{SHIM}")
