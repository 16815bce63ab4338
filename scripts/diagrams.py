"""Draws the Mermaid diagrams of the manual as SVG, so that the site needs no script to show them.

Writes docs/images/PAGE-NUMBER.svg for each diagram. Needs a Chromium, and the package mermaid of npm:

    npm pack mermaid && tar xf mermaid-*.tgz && python scripts/diagrams.py package/dist/mermaid.min.js
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.chromium import Chromium, find_chromium  # noqa: E402  # after the path
from scripts.lib.diagrams import checksum, diagrams  # noqa: E402

DRAW: Final = """
(async () => {
  mermaid.initialize({startOnLoad: false, theme: "neutral", securityLevel: "strict", htmlLabels: false,
                      state: {nodeSpacing: 120, rankSpacing: 80}, fontFamily: "sans-serif"});
  return (await mermaid.render("diagram", SOURCE)).svg;
})()
"""


def main() -> int:
    """Draw every diagram again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", type=Path, help="the path of mermaid.min.js")
    options = parser.parse_args()
    program = find_chromium()
    if program is None:
        print("no Chromium was found: install one, or set SYNREPL_CHROMIUM to its path", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, Chromium(program) as browser:
        page = Path(folder) / "page.html"
        page.write_text(f'<body><script src="{options.library.resolve().as_uri()}"></script>', "utf-8")
        tab = browser.tab(1200, 900)
        tab.open(page.as_uri())
        for found in diagrams():
            drawn = tab.value(DRAW.replace("SOURCE", json.dumps(found.source)))
            drawn = drawn.replace('style="', 'style="background: white; ', 1)  # also on a dark page
            found.image.write_text(f"{drawn}\n<!-- {checksum(found.source)} -->\n", "utf-8")
            print(found.image.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
