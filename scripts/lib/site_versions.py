"""Puts a built site beside those of other versions, with the list that the theme's menu of versions reads.

site_versions.py SITE FOLDER
"""

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Final

__all__ = ["add_version"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent

REDIRECT: Final = """\
<!doctype html>
<html lang="en">
<title>synrepl</title>
<meta http-equiv="refresh" content="0; url={version}/index.html">
<a href="{version}/index.html">The manual of synrepl {version}</a>
"""


def add_version(site: Path, folder: Path, version: str) -> None:
    """Copy a site to ``folder/version``; update the folder's redirect to the newest version, and its list."""
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(site, folder / version)
    found = [path.parent.name for path in folder.glob("*/index.html")]
    versions = sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    listed = [
        {"version": one, "title": one, "aliases": ["latest"] if one == versions[0] else []}
        for one in versions
    ]
    (folder / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", "utf-8")
    (folder / "index.html").write_text(REDIRECT.format(version=versions[0]), "utf-8")


def main() -> int:
    """Add the site of this checkout, under its version."""
    site, folder = map(Path, sys.argv[1:])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    add_version(site, folder, project["version"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
