"""Rows of one release, made by its own classes, which are loaded alone from its unpacked package.

    row_classes.py FOLDER COUNT

FOLDER is the unpacked wheel or source archive. From stdin comes an object of JSON: by stream, and by tag for
rows of several kinds, the fields as ``name:type``. For each stream and kind at least COUNT rows are made with
Hypothesis, and read again by the release. Prints an object for each: ``{"stream", "tag", "line"}``, `line`
being the RDATA that the release writes; and for a stream that fails ``{"stream", "why"}``.

Only the modules of rows, commands and JSON are the release's. All else that they import is a stand-in, so
that no other package is needed, whatever Python the release was made for.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

REAL = (
    "synapse.replication.tcp.streams",
    "synapse.replication.tcp.commands",
    "synapse.util",
    "synapse.util.json",
)
PACKAGES = ("synapse", "synapse.replication", "synapse.replication.tcp")


class _AnyName(type):
    """Has every attribute, is called as a decorator or a class, and stands in annotations."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __getitem__(cls, key):
        return StandIn

    def __or__(cls, other):
        return StandIn

    __ror__ = __or__

    def __call__(cls, *args, **kwargs):
        if cls is not StandIn:
            return super().__call__(*args, **kwargs)
        return args[0] if len(args) == 1 and callable(args[0]) else StandIn


class StandIn(metaclass=_AnyName):
    """For what is not there."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real modules of the release in its folder, and stand-ins for all others that are missing."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name.startswith(REAL):
            file = self.folder.joinpath(*name.split("."))
            for found in (file / "__init__.py", file.with_suffix(".py")):
                if found.exists():
                    places = [str(file)] if found.name == "__init__.py" else None
                    return importlib.util.spec_from_file_location(
                        name, found, submodule_search_locations=places
                    )
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        if spec.name == "simplejson":
            # Writes and escapes as `json` does.
            module.JSONEncoder = lambda namedtuple_as_object: json.JSONEncoder()
            module.loads = json.loads
        elif spec.name not in PACKAGES:
            module.__getattr__ = lambda name: getattr(StandIn, name)
        return module

    def exec_module(self, module):
        pass


class Behind(Finder):
    """For modules that are not Synapse's: only if they are missing."""

    def find_spec(self, name, path=None, target=None):
        return (
            None
            if name.startswith("synapse")
            else importlib.machinery.ModuleSpec(name, self, is_package=True)
        )


class Ahead(Finder):
    """For Synapse's modules, installed or not."""

    def find_spec(self, name, path=None, target=None):
        return super().find_spec(name, path, target) if name.partition(".")[0] == "synapse" else None


# No lone surrogates, NUL or numbers beyond 64 bits: no writer has them in its database.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NUMBER = st.integers(-(2**63), 2**63 - 1)
SCALAR = st.none() | st.booleans() | NUMBER | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    SCALAR, lambda some: st.lists(some, max_size=3) | st.dictionaries(TEXT, some, max_size=3), max_leaves=6
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
KINDS = {
    "str": TEXT,
    "int": NUMBER,
    "bool": st.booleans(),
    "dict": OBJECT,
    "json text": OBJECT.map(json.dumps),
    "list[str]": st.lists(TEXT, max_size=3),
    "list[Any]": st.lists(TEXT, max_size=3),
}


def values(fields):
    """A strategy for the values of these fields."""
    each = []
    for field in fields:
        kind = field.partition(":")[2]
        one = KINDS[kind.rstrip("?")]
        each.append(st.none() | one if kind.endswith("?") else one)
    return st.tuples(*each)


def names_of(row_class):
    """The names of a row class's fields; None if a row is its bare value."""
    if hasattr(row_class, "_fields"):
        return list(row_class._fields)
    if hasattr(row_class, "__attrs_attrs__"):
        return [one.name for one in row_class.__attrs_attrs__]
    return None


def lines_of(stream, row_class, tag, fields, command, count):
    """Lines of RDATA with rows that the class has made, and that the stream reads again."""
    lines = []
    names = names_of(row_class)
    writer = ["master"] if "instance_name" in command.__init__.__code__.co_varnames else []

    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @seed(1)
    @given(values(fields))
    def make(items):
        sent = list(items)
        if names is not None:
            row = row_class(*items)
            # A set is one of the reader alone: writers send a list.
            sent = [
                item if isinstance(made, frozenset) else made
                for item, made in zip(items, [getattr(row, name) for name in names])
            ]
        line = command(stream.NAME, *writer, 7, [tag, sent] if tag else sent).to_line()
        read = stream.parse_row(json.loads(line.split(" 7 ", 1)[1]))
        read = read.data if tag else read
        assert read == row if names is not None else read in (items[0], items), read
        lines.append("RDATA " + line)

    make()
    return list(dict.fromkeys(lines))


def rows_of(streams, name, fields, command, count):
    """Lines of one stream with their tags, and why there are no more."""
    try:
        stream = streams.STREAMS_MAP[name]
        kinds = {"": stream.ROW_TYPE} if "" in fields else streams.events.TypeToRow
        assert list(kinds) == list(fields), list(kinds)
        for tag, row_class in kinds.items():
            words = [one.partition(":")[0] for one in fields[tag]]
            assert names_of(row_class) in (words, None), names_of(row_class)
            for line in lines_of(stream, row_class, tag, fields[tag], command, count):
                yield {"tag": tag, "line": line}
    except Exception as error:
        yield {"why": repr(error)}


def main():
    folder, count, fields = Path(sys.argv[1]), int(sys.argv[2]), json.load(sys.stdin)
    sys.meta_path.insert(0, Ahead(folder))
    sys.meta_path.append(Behind(folder))
    from synapse.replication.tcp import commands, streams

    for name in dict.fromkeys([*streams.STREAMS_MAP, *fields]):
        for found in rows_of(streams, name, fields.get(name, {}), commands.RdataCommand, count):
            print(json.dumps({"stream": name, **found}))


if __name__ == "__main__":
    main()
