"""Targets that read files: settings, keys, secrets, and recordings."""

import tempfile
from pathlib import Path

from scripts.fuzz_parts.target import BadAnswer, Target
from scripts.fuzz_parts.wire import DIALECTS, TABLE
from synrepl.cli import recordings
from synrepl.config import Settings
from synrepl.config.config_files import read_keys, read_secret
from synrepl.errors import ConfigError
from synrepl.wire import jsontext
from tests.captures import GOLDEN

__all__ = ["ConfigTarget", "RecordedTarget"]


class ConfigTarget(Target):
    """Reads a file of settings or of keys, or a secret file; the first byte of the input says which."""

    def seeds(self) -> list[bytes]:
        example = (GOLDEN.parents[1] / "contrib" / "config.example.yaml").read_bytes()
        plain = b"\n".join(line.lstrip(b"# ") for line in example.splitlines() if b": " in line)
        keys = b"w1 secret-of-w1 read,write to_device,events\nw2 other all\n# a remark\nw3 certificate -\n"
        return [b"\0" + example, b"\0" + plain, b"\1" + keys, b"\2secret\n"]

    def run(self, data: bytes) -> object:
        which, text = (*data[:1], 0)[0] % 3, data[1:]
        with tempfile.TemporaryDirectory(prefix="synrepl-fuzz-") as folder:
            path = Path(folder) / "file"
            path.write_bytes(text)
            path.chmod(0o600)
            try:
                if which == 0:
                    Settings.build(file=path)
                elif which == 1:
                    read_keys(path, [])
                else:
                    read_secret(path, [])
            except ConfigError as error:
                if "\n" in str(error):
                    raise BadAnswer(f"the message has more than one line: {error}") from error
                return which, str(error).replace(str(path), "")[:25]
        return which, "good"


class RecordedTarget(Target):
    """Reads a recording, as `synrepl replay` does. First byte: the dialect, or 0 to detect it."""

    def seeds(self) -> list[bytes]:
        found = [path.read_bytes()[:3_000] for path in sorted(GOLDEN.rglob("*.txt"))]
        change = b'{"serial":1,"stream":"to_device","writer":"w","rows":[["@a:h"]],"committed_at_ms":1}\n'
        return [bytes([which]) + text for text in (*found, change * 3) for which in (0, 3)]

    def run(self, data: bytes) -> object:
        which, text = (*data[:1], 0)[0] % 6, data[1:]
        dialect = None if which == 0 else DIALECTS[which - 1]
        found = recordings.read(text, TABLE, dialect=dialect)
        posted = [jsontext.join(fact.rows) for fact in found.facts]
        return which, len(posted).bit_length(), sorted({bad.why[:15] for bad in found.bad})[:5]
