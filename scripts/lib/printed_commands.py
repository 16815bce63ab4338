"""The commands that the manual prints, and the output that it shows for them.

A block that is indented by four spaces has commands, and so has a fence `sh`. In a fence `console` the lines
with ``$`` are commands, and the others output. A fence `text` or `json` is the output of a command before it
in the same section. A comment on a line of its own before a block says how it is run:

* ``<!-- not run: REASON -->``: the commands of the block are not run, its output is not compared
* ``<!-- not output: WHAT IT IS -->``: the block is a picture, a file or the words of another program
* ``<!-- first: COMMAND -->``, ``<!-- first on MACHINE: COMMAND -->``: run this command, which the page does
  not show; before an output block it is the command that prints the output. `stop` ends all programs,
  `stop MACHINE` those of a machine
* ``<!-- on: MACHINE -->``: run the block on another machine; the first one is the default
* ``<!-- type: TEXT -->``: the input of the commands; each ``;`` ends a line

In output ``...`` stands for any text, and alone for any lines. Where the page shows a time, a duration, a
digest or another long hexadecimal number, any other one is accepted.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = [
    "NOT_RUN",
    "Block",
    "accepts",
    "all_pages",
    "is_usage",
    "outputs_of_nothing",
    "pages",
    "read_blocks",
    "split_commands",
]

ROOT: Final = Path(__file__).resolve().parent.parent.parent

NOT_RUN: Final = {
    r"^(\w+=\S* )*(\./scripts/|python (scripts/|-m tests\.))": "a program of the checkout: CI runs it",
    r"^(\S*/)?pip install": "installs packages; scripts/check-wheel does",
}
"""Patterns of commands that are not run on any page, with the reason."""

CHECKED_ELSEWHERE: Final = {
    "docs/reference/http.md": "tests/http/test_examples.py sends its requests",
    "docs/reference/cli.md": "tests/cli/ tries every command",
}

_COMMENT: Final = re.compile(r"<!-- (not run|not output|first|on|type)(?: on (\w+))?: (.*) -->")
_ITEM: Final = re.compile(r"[*-] |\d+\. | ")
_FILE: Final = re.compile(r"`([\w-]+\.(?:py|tac|yaml))`[^`]*:$")
_PROGRAMS: Final = ("python", "yaml")
_VARIABLE: Final = {
    r"(?<!\w)\d{13}(?!\w)": r"\\d{13}",
    r"(?<![\w.])[0-9a-f]{8,}(?![\w])|(?<=-)[0-9a-f]{8}\b": "[0-9a-f]{8,}",
    r"\d+\\\.\d+(?=\ ?(?:s|ms|MB|B)\b)|\d+\\\.\d+(?=\\ (?:s|ms|MB|B)\b)": r"[\\d.]+",
}


@dataclass
class Block:
    """Commands, output or a file of a page."""

    line: int
    section: str
    kind: str  # "commands", "output", "file" or "other"
    text: str
    name: str = ""  # of a file
    not_run: str = ""
    first: list[tuple[str, str]] = field(default_factory=list)
    """Machines and commands."""
    on: str = ""
    typed: str = ""

    @property
    def commands(self) -> list[str]:
        """The commands, each of which may have several lines."""
        return split_commands(self.text)


def pages() -> list[str]:
    """The pages with commands, as paths in the checkout."""
    return [
        name
        for name in all_pages()
        if name not in CHECKED_ELSEWHERE and any(one.kind == "commands" for one in read_blocks(ROOT / name))
    ]


def all_pages() -> list[str]:
    """The pages of the manual, as paths in the checkout."""
    found = [ROOT / "README.md", ROOT / "docs/README.md"]
    for folder in ("tutorial", "howto", "reference", "explanation"):
        found += sorted((ROOT / "docs" / folder).glob("*.md"))
    return [path.relative_to(ROOT).as_posix() for path in found]


def outputs_of_nothing(page: Path) -> list[int]:
    """Return the line numbers of outputs whose section has no command, and that no comment explains."""
    found: list[int] = []
    section, has_command = "", False
    for block in read_blocks(page):
        if block.section != section:
            section, has_command = block.section, False
        has_command |= block.kind == "commands" or bool(block.first)
        if block.kind == "output" and not (has_command or block.not_run):
            found.append(block.line)
    return found


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order. Indented text in lists is no block."""
    lines = page.read_text("utf-8").splitlines()
    comments: list[tuple[str, str, str]] = []
    section, before, position = "", "", 0
    while position < len(lines):
        line, start = lines[position], position
        position += 1
        language, body = "", []
        if line.startswith("```"):
            language = line[3:]
            while lines[position] != "```":
                body.append(lines[position])
                position += 1
            position += 1
        elif line.startswith("    ") and not _ITEM.match(before):
            language = "commands"
            position -= 1
            while position < len(lines) and (lines[position].startswith("    ") or not lines[position]):
                body.append(lines[position][4:])
                position += 1
            while not body[-1]:
                body.pop()
        elif line.startswith("#"):
            section, comments = line, []
        elif found := _COMMENT.fullmatch(line):
            comments.append((found[1], found[2] or "", found[3]))
        if body:
            for part, (kind, text) in enumerate(_parts(language, body)):
                block = Block(start + 1, section, kind, text)
                for key, machine, value in comments:
                    if key == "first" and part:
                        continue
                    if key == "not output":
                        block.kind = "other"
                    elif key == "first":
                        block.first.append((machine, value))
                    else:
                        setattr(block, {"not run": "not_run", "type": "typed"}.get(key, key), value)
                if kind == "file":
                    named = _FILE.search(before)
                    if named is None:
                        continue
                    block.name = named[1]
                yield block
            comments = []
        if line and not body and not _COMMENT.fullmatch(line):
            before = line if not before or not lines[start - 1] else f"{before} {line}"
        if body:
            before = ""


def _parts(language: str, body: list[str]) -> Iterator[tuple[str, str]]:
    text = "\n".join(body)
    if language in ("commands", "sh"):
        if not is_usage(text):
            yield "commands", text
    elif language in _PROGRAMS:
        yield "file", text
    elif language in ("text", "json"):
        yield "output", text
    elif language == "console":
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            size = next(size for size in range(1, len(lines) + 1) if _is_whole("\n".join(lines[:size])))
            command, shown = "\n".join(lines[:size]), "\n".join(lines[size:])
            yield "commands", command
            if shown:
                yield "output", shown


def is_usage(text: str) -> bool:
    """Whether a block is the usage of a command, such as ``synrepl tail [options]``, and no command."""
    return "[options]" in text


def split_commands(text: str) -> list[str]:
    """Split a script into complete commands. Raises `ValueError` if the last one is incomplete."""
    found: list[str] = []
    pending: list[str] = []
    for line in text.splitlines():
        pending.append(line)
        command = "\n".join(pending)
        if not _is_whole(command):
            continue
        pending = []
        if re.sub(r"^\s*#.*", "", command).strip():
            found.append(command)
    if pending:
        raise ValueError(f"this command is incomplete: {pending[0]}")
    return found


def _is_whole(command: str) -> bool:
    checked = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
    return not (command.endswith("\\") or checked.returncode or checked.stderr)


def accepts(shown: str, printed: str, *, is_whole: bool) -> bool:
    """Whether the output `printed` is what a page shows; without `is_whole` it may have more lines."""
    parts = []
    for line in shown.splitlines():
        if line == "...":
            parts.append(r"(?:.*\n)*?")
            continue
        pattern = re.escape(line.rstrip())
        for known, other in _VARIABLE.items():
            pattern = re.sub(known, other, pattern)
        parts.append(pattern.replace(r"\.\.\.", ".*") + r"[ ]*\n" + ("" if is_whole else r"(?:.*\n)*?"))
    text = "".join(f"{line}\n" for line in printed.replace("\r\n", "\n").splitlines())
    if is_whole:
        return re.fullmatch("".join(parts), text) is not None
    return re.search("^" + "".join(parts), text, re.MULTILINE) is not None
