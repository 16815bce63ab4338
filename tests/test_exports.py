"""The public surface: what is there, and that nothing slips in or out by accident."""

import doctest
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import synrepl
import synrepl.errors
import synrepl.streams.catalog
import synrepl.testing
from scripts.lib.manual import is_built, pages

PACKAGE = Path(synrepl.__file__).parent
ROOT = PACKAGE.parent
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


def is_installed(name: str) -> bool:
    """Whether this public name is of the core, or its room is there."""
    return find_spec(".".join(synrepl._HOMES[name].split(".")[:2])) is not None


def test_every_public_name_is_there() -> None:
    """A name in the list that cannot be had would break only the worker that uses it."""
    assert synrepl.__all__ == [
        "CURRENT", "LEGACY", "MIDDLE", "NATIVE",
        "AllocatedIds", "Caches", "Changes", "ConfigError", "Dialect", "FilePositions", "Follower",
        "FollowerEvent", "GapError", "Gone", "IPositionStore", "IdStream", "IdTable", "Invalidation",
        "InvalidationWriter", "LocalProtocolError", "Metrics", "MultiWriterIdGenerator", "NeverAllocated",
        "NotAWriter", "NotConnected", "ProtocolError", "Publisher", "RemoteProtocolError", "ReplicationError",
        "RowError", "SQLPositions", "Settings", "Since", "StorageError", "Stream", "StreamIdGenerator",
        "StreamTable", "UnknownStream", "Updates", "VClock", "Vintage", "WaitTimeout", "WriterSession",
        "connect", "row", "serve", "transact",
    ]  # fmt: skip
    for name in synrepl.__all__:
        if is_installed(name):
            assert getattr(synrepl, name).__class__ is not None


def test_name_of_missing_room_says_which_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever deleted a room and imports a name of it need not look for a spelling mistake."""
    for module in [one for one in sys.modules if one.startswith("synrepl.ids.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "synrepl.ids", None)

    with pytest.raises(ImportError, match="WriterSession belongs to ids, which is not installed"):
        from synrepl import WriterSession  # noqa: F401


def test_names_are_listed_and_suggested() -> None:
    """A shell completes what `dir` lists, although names are imported on use."""
    assert set(synrepl.__all__) <= set(dir(synrepl))
    assert synrepl.streams.catalog.PUBLIC <= set(dir(synrepl.streams))
    with pytest.raises(AttributeError, match="has no attribute 'Folower'; did you mean Follower"):
        _ = synrepl.Folower  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'RECEIPT'; did you mean RECEIPTS"):
        _ = synrepl.streams.RECEIPT  # type: ignore[attr-defined]


def test_a_stream_is_followed_by_its_name_too() -> None:
    """As `wait_for` takes it; whatever is no stream is refused where it is given."""
    follower = synrepl.Follower(instance="worker")
    follower.on("receipts")(lambda updates: None)

    assert "receipts" in follower.server.streams.executors
    with pytest.raises(synrepl.UnknownStream, match="unknown stream 'recepts'; did you mean receipts"):
        follower.on("recepts")
    wrong: Any = synrepl.streams.Receipt
    with pytest.raises(TypeError, match=r"takes a stream, such as synrepl\.streams\.RECEIPTS"):
        follower.on(wrong)


def test_every_error_is_public() -> None:
    """A worker must be able to catch what we raise."""
    errors = [one for one in vars(synrepl.errors).values() if isinstance(one, type)]
    names = {one.__name__ for one in errors if issubclass(one, synrepl.ReplicationError)}
    assert {"ReplicationError", "StorageError"} < names <= set(synrepl.__all__)


def test_a_follower_shows_what_a_worker_needs() -> None:
    """Whatever else it does is behind `server`, for transports."""
    follower = synrepl.Follower(instance="worker")

    assert [name for name in dir(follower) if not name.startswith("_")] == [
        "caught_up", "gaps", "instance", "is_connected", "lag_rows", "lag_seconds", "lost_gaps",
        "on", "on_batch", "on_command", "on_event", "on_everything", "positions", "send", "server", "stop",
        "table", "wait_for", "waiting_streams",
    ]  # fmt: skip


def test_the_test_kit_is_public() -> None:
    """Workers are tested with the same parts as we are."""
    for name in synrepl.testing.__all__:
        assert getattr(synrepl.testing, name) is not None


def test_the_catalog_is_imported_from_streams() -> None:
    """On first use, and not by its modules: executors of Spark import some of them."""
    for name in synrepl.streams.catalog.PUBLIC:
        assert getattr(synrepl.streams, name) is getattr(synrepl.streams.catalog, name)
    code = "import sys, synrepl.wire.jsontext as j; from synrepl.streams import facts; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert "synrepl.streams.facts" in loaded
    assert "synrepl.streams.catalog" not in loaded
    assert not hasattr(synrepl.streams, "NoSuchStream")


PUBLIC = {
    "synrepl",
    "synrepl.pipeline.source.data_source",
    "synrepl.pipeline.typed",
    "synrepl.streams",
    "synrepl.testing",
    "synrepl.wire.commands",
}


def pages_for_programs() -> list[Path]:
    """The pages that people read who write programs of their own: all but the one for contributors."""
    found = [page for page in pages() if not is_built(page) and page.name != "contribute.md"]
    return [ROOT / "README.md", *found]


@pytest.mark.parametrize("page", pages_for_programs(), ids=lambda page: page.name)
def test_the_manual_imports_from_public_packages(page: Path) -> None:
    """What it shows must not move; the page about changing synrepl itself shows the rest."""
    imported = re.findall(r"^(?: {4})?from (synrepl[\w.]*) import", page.read_text("utf-8"), re.MULTILINE)

    assert set(imported) <= PUBLIC


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As in any module."""
    assert not hasattr(synrepl, "NoSuchThing")


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_in_docstrings_run(module: str) -> None:
    """An example that fails is worse than none."""
    result = doctest.testmod(import_module(module))

    assert result.attempted
    assert not result.failed
