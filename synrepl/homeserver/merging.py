"""Merges a homeserver's files as Synapse does: one merge for each process, in order, key by key at the top.

What a file is depends on what is in it, and not on the option that named it: one with `worker_app` or
`worker_name` belongs to that process, all others are shared (docs/reference/peers.md#configuration). A folder
with no more than one of each is of one process, whose keys may be in several files of it. No
message quotes a value, as any may be a secret.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.config.config_files import RENDER
from synrepl.errors import ConfigError
from synrepl.homeserver.manifests import load_parts
from synrepl.html.humanize import listed
from synrepl.wire.text import printable

MAIN: Final = "master"
"""The main process, as the streams call it. In `instance_map` its name is ``main``."""
HOMESERVER_APP: Final = "synapse.app.homeserver"
OWN_KEYS: Final = (
    *("worker_app", "worker_name", "worker_listeners", "worker_log_config", "worker_pid_file"),
    *("worker_daemonize", "worker_manhole"),
)
"""Keys of one process, and not of all."""

MAX_LOST: Final = 5
"""The most names of a replaced key that are reported."""
MAX_MARKS: Final = 100
"""The most places with a template's mark that are reported."""
_TEMPLATE: Final = re.compile(r"\$\{\s*(\w{1,100})[^}]{0,500}\}|\{\{\s*([\w.]{1,100})[^}]{0,500}\}\}")


class Template(str):
    """A text of the files with a template's mark left in: what the process will have there is not known."""

    __slots__ = ()


class Unfilled(msgspec.Struct, frozen=True):
    """Where a mark was left in: the file, the keys down to it, and the name of the variable."""

    file: str
    key: str
    variable: str


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """A key at the top of a file that a later one (`by`), or the same again, replaces: what is lost with it.

    `is_wrong`: without that the key says nothing. `times`: how often a file has it that is of several
    processes.
    """

    key: str
    file: str
    by: str
    lost: tuple[str, ...] = ()
    is_wrong: bool = False
    times: int = 0

    @property
    def why(self) -> str:
        """What happened, in words."""
        if self.times:
            return (
                f"`{self.key}` is there {self.times} times in {self.file}, as if it were the files of so many"
                " workers: the last alone counts"
            )
        lost = [printable(one) for one in self.lost[:MAX_LOST]]
        what = f"what listens at {listed(lost)}" if self.key == "listeners" else f"{listed(lost)} of it"
        is_one = len(lost) == 1 or self.key == "listeners"
        how = (
            f"is there twice in {self.file}, and the last replaces the first whole"
            if self.file == self.by
            else f"in {self.by} replaces that of {self.file} whole"
        )
        return f"`{self.key}` {how}: {what} {'does' if is_one else 'do'} not count"

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.times:
            return "give the file of each worker as a file of its own"
        return f"keep one `{self.key}`, with all that is meant in it"


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The merged configuration of one process. `origins` are the files of the keys at the top."""

    file: str
    values: Mapping[str, Any]
    origins: Mapping[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key at the top."""
        return self.values.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.values

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The mapping at this key; an empty one for anything else."""
        return as_mapping(self.values.get(key))

    def list(self, key: str) -> list[Any]:
        """The list at this key; an empty one for anything else."""
        return as_list(self.values.get(key))

    def origin(self, key: str) -> str:
        """The file that has this key, or else the process' own."""
        return self.origins.get(key, self.file)

    @property
    def app(self) -> str:
        """Its `worker_app`; empty for the main process."""
        app = self.values.get("worker_app")
        return app if isinstance(app, str) and app != HOMESERVER_APP else ""

    @property
    def worker_name(self) -> str | None:
        """What duties compare with: `worker_name`, or else `worker_app`; None for the main process."""
        name = self.values.get("worker_name", self.app or None)
        return name if isinstance(name, str) or name is None else str(name)

    @property
    def name(self) -> str:
        """The name in rows and positions."""
        return self.worker_name or MAIN

    @property
    def is_main(self) -> bool:
        """Whether it is the main process. A worker may be called as it is, by mistake."""
        return not self.worker_name


class MergedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What was read: the processes (the main process first, if its files were given), and what was not.

    `ignored` are files that Synapse ignores, as they hold no mapping, and `passed_over` those of a folder
    that it does not read, as their names end with .yml. `around` are files that are not its own, but have to
    do with them, each with what it is. `read_by_main` are files of workers in a folder that
    the main process is given, each with the key that makes it a worker's.
    """

    processes: Sequence[ProcessConfig]
    ignored: Sequence[str] = ()
    passed_over: Sequence[str] = ()
    around: Sequence[tuple[str, str]] = ()
    unfilled: Sequence[Unfilled] = ()
    replaced: Sequence[Replaced] = ()
    read_by_main: Sequence[tuple[str, str]] = ()


def merge_files(
    paths: Iterable[Path],
    read_keys: Iterable[str],
    workers: Iterable[Path] = (),
    *,
    takes_part: bool = False,
) -> MergedFiles:
    """Read these files and directories, in order. Marks of templates are sought below `read_keys`.

    `paths` are what the main process is given, with files of workers or without, and `workers` are not.

    Raises `ConfigError` for a file that cannot be read, and if none is the configuration of a homeserver:
    none has its server_name or, with `takes_part`, none has what only Synapse has.
    """
    of_main = list(paths)
    given = [*of_main, *workers]
    keys, ignored, unfilled = frozenset(read_keys), list[str](), list[Unfilled]()
    passed_over, around, replaced = list[str](), list[tuple[str, str]](), list[Replaced]()
    shared, own = _Merge(), list[_Merge]()
    seen, read = set[Path](), set[Path]()
    has_inner = False
    sharing, in_folders = set[Path](), list[tuple[Path, str, str]]()
    for number, path in enumerate(given):
        contents = {}
        passed_over += map(str, _ending(path, ".yml") if path.is_dir() else ())
        parts = [(one, *part) for one in _files(path) for part in load_parts(one, keys)]
        for outer, file, layers in parts:
            has_inner = has_inner or file != outer
            content = layers[0]
            if (count := sum("worker_name" in one for one in layers if isinstance(one, dict))) > 1:
                replaced.append(Replaced(key="worker_name", file=str(file), by=str(file), times=count))
            for layer in layers[1:]:
                replaced += _replaced(content, dict.fromkeys(content, str(file)), str(file), layer)
                content = {**content, **layer}
            if isinstance(content, dict) and (kind := _kind_around(content)):
                why = "".join(text for name, text in BY_ENVIRONMENT.items() if _sets(content, name))
                around.append((str(file), kind + why))
            elif isinstance(content, dict):
                contents[file] = {
                    key: _marked(value, str(file), str(key), unfilled) if key in keys else value
                    for key, value in content.items()
                }
            elif content is not None:
                ignored.append(str(file))
        groups = _groups(contents)
        for file, content in contents.items():
            if not any(file in group for group in groups):
                if file.resolve() not in read:
                    replaced += _replaced(shared.values, shared.origins, str(file), content)
                read.add(file.resolve())
                shared = shared.over(file, content)
                sharing.add(path)
        for group in groups:
            if number < len(of_main) and path.is_dir():
                in_folders += [
                    (path, str(file), key) for file in group for key in _naming(contents[file])[:1]
                ]
            # The same file may be named by itself, and be in a folder as well.
            if not seen.issuperset(file.resolve() for file in group):
                merged = _Merge()
                for file in group:
                    merged = merged.over(file, contents[file])
                own.append(merged)
            seen.update(file.resolve() for file in group)
    if has_inner:
        # Beside those that hold its files, manifests are of containers, networks and disks.
        around = [(file, kind) for file, kind in around if not kind.startswith(OF_KUBERNETES)]
    processes = sorted(_processes(shared, own), key=lambda one: not one.is_main)
    is_part = takes_part and not around and not any("server_name" in one for one in processes)
    if is_part and _has_part(shared.values):
        processes = [shared.process(), *processes]
    if not (is_part and processes) and not any(isinstance(one.get("server_name"), str) for one in processes):
        names = ", ".join(str(path) for path in given)
        if around:
            made = dict.fromkeys(how for _, kind in around for mark, how in _MADE_BY if mark in kind)
            how = f": {'; '.join(made)}" if made else ""
            raise ConfigError(
                "; ".join(f"{file} is {kind}" for file, kind in around)
                + f": give the files that Synapse gets, with server_name in one{how}"
            )
        without = f" ({', '.join(ignored)} has no settings at its top)" if ignored else ""
        raise ConfigError(f"{names}: no server_name: this is not the configuration of a homeserver{without}")
    return MergedFiles(
        processes=processes,
        ignored=ignored,
        passed_over=passed_over,
        around=around,
        unfilled=unfilled,
        replaced=replaced,
        # A folder alone may be all there is, and not be what the main process is given.
        read_by_main=[
            (file, key) for path, file, key in in_folders if sharing.intersection(of_main) - {path}
        ],
    )


def _naming(content: Mapping[str, Any]) -> list[str]:
    """Return the keys in this content that make its file that of a worker."""
    return [
        key for key in ("worker_app", "worker_name") if content.get(key, HOMESERVER_APP) != HOMESERVER_APP
    ]


def _has_part(content: Mapping[str, Any]) -> bool:
    """Whether this content without server_name has settings that are of Synapse without doubt."""
    listeners = map(as_mapping, as_list(content.get("listeners")))
    return (
        any(as_mapping(content.get(key)) for key in ("instance_map", "stream_writers"))
        or "enabled" in as_mapping(content.get("redis"))
        or any("type" in one and ("port" in one or "path" in one) for one in listeners)
    )


COLLECTIONS: Final = ("listeners", "redis", "database", "instance_map", "stream_writers")
"""Keys of which a part may be lost, when another file has the key again."""


def _replaced(
    values: Mapping[str, Any], origins: Mapping[str, str], by: str, content: Mapping[str, Any]
) -> Iterator[Replaced]:
    """What is lost of `values`, as this file has the key again."""
    for key in COLLECTIONS:
        if key not in values or key not in content:
            continue
        before, after = _parts(values[key]), _parts(content[key])
        if lost := [name for name in before if name not in after]:
            yield Replaced(
                key=key,
                file=origins.get(key, by),
                by=by,
                lost=tuple(lost),
                is_wrong=_says(key, values[key]) and not _says(key, content[key]),
            )


def _parts(value: Any) -> list[str]:
    """The names in a mapping; the ports and paths in a list of listeners."""
    if isinstance(value, dict):
        return [str(name) for name in value]
    listeners = map(as_mapping, as_list(value))
    return [str(one.get("path") or one.get("port")) for one in listeners]


def _says(key: str, value: Any) -> bool:
    """Whether this key does at all what it is for."""
    if key == "listeners":
        resources = [one for each in as_list(value) for one in as_list(as_mapping(each).get("resources"))]
        names = {str(name) for one in resources for name in as_list(as_mapping(one).get("names"))}
        return bool(names & {"client", "federation"})
    needed = {"redis": "enabled", "database": "name"}.get(key)
    return needed is not None and bool(as_mapping(value).get(needed))


OF_KUBERNETES: Final = "a manifest of Kubernetes"
OF_HELM: Final = "Helm chart"
WORKER_TYPES: Final = "SYNAPSE_WORKER_TYPES"
FACTOR: Final = "SYNAPSE_CACHE_FACTOR"
BY_ENVIRONMENT: Final = {
    FACTOR: f" (Synapse ignores its {FACTOR} since 1.60: set `caches: global_factor` in its configuration)",
    WORKER_TYPES: f" (by its {WORKER_TYPES} the image makes the files of workers at its start: they are in"
    " /conf/workers, and what they share in /conf/workers/shared.yaml)",
}
"""What variables in the environment of a container mean."""
OF_ANSIBLE: Final = "variables of Ansible"
OF_COMPOSE: Final = "a file of Docker Compose"


_MADE_BY: Final = (
    (OF_HELM, f"of a chart {RENDER}"),
    ("(HelmRelease)", f"of a chart {RENDER}"),
    ("(Application)", f"of a chart {RENDER}"),
    ("(Kustomization)", "what `kubectl kustomize FOLDER` writes"),
    ("Secret)", "what `kubectl get secret NAME -o yaml` writes, if it is sealed or kept elsewhere"),
    (OF_ANSIBLE, "those that the role writes on the server, workers' too"),
    (OF_COMPOSE, "those of a container by `docker compose cp SERVICE:/data FOLDER`"),
)
"""What makes the files of Synapse from such a file, by a part of its kind."""
_CAMEL: Final = re.compile(r"[a-z]+[A-Z]\w*", re.ASCII)
"""A key as charts have them, and other programs: no setting of Synapse is written so."""
_PARTS: Final = frozenset({"config", "extraConfig", "ingress", "postgresql", "redis", "service", "workers"})
"""Keys that charts of Synapse have at the top."""


def _kind_around(content: Mapping[Any, Any]) -> str:
    """What a file is that has files of Synapse in it, or starts it; "" for one of Synapse's."""
    if "server_name" in content or "worker_app" in content:
        return ""
    if "apiVersion" in content and isinstance(kind := content.get("kind"), str):
        names = [
            str(name) for name in as_mapping(content.get("data")) if str(name).endswith((".yaml", ".yml"))
        ]
        inside = f", with {printable(', '.join(names), limit=200)} in it" if names else ""
        return f"{OF_KUBERNETES} ({printable(kind)}){inside}"
    if isinstance(content.get("services"), dict):
        return OF_COMPOSE
    if {"apiVersion", "name", "version"} <= {*content}:
        return f"the description of a {OF_HELM}"
    of_chart = ("replicaCount", "image", "ingress", "synapse", "fullnameOverride")
    is_of_chart = any(_CAMEL.fullmatch(str(key)) for key in content) and not _PARTS.isdisjoint(content)
    if is_of_chart or any(isinstance(content.get(key), dict | int) for key in of_chart):
        return f"values of a {OF_HELM}"
    if "server_name" in as_mapping(content.get("global")):
        return "a configuration of Dendrite, which is another homeserver"
    of_role = [key for key in content if str(key).startswith(("matrix_", "synapse_"))]
    return OF_ANSIBLE if len(of_role) > 1 else ""


def _sets(value: Any, name: str) -> bool:
    """Whether an environment in this content has the variable, in any of the forms of manifests."""
    if isinstance(value, dict):
        return name in value or value.get("name") == name or any(_sets(one, name) for one in value.values())
    if isinstance(value, list):
        return any(_sets(one, name) for one in value)
    return isinstance(value, str) and value.startswith(f"{name}=")


def _groups(contents: Mapping[Path, Mapping[str, Any]]) -> list[list[Path]]:
    """The files of each process among those of a path."""
    naming = [
        [file for file, content in contents.items() if content.get(key)]
        for key in ("worker_app", "worker_name")
    ]
    if any(len(files) > 1 for files in naming):
        return [[file] for file in contents if any(file in files for files in naming)]
    of_one = [file for file, content in contents.items() if any(key in content for key in OWN_KEYS)]
    return [of_one] if any(naming) else []


class _Merge(msgspec.Struct, frozen=True):
    """Keys at the top, each whole, with the files that they are from."""

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    named_by: str = ""
    """The last file with a server_name, or else the last."""

    def over(self, path: Path, content: dict[str, Any]) -> "_Merge":
        is_named = "server_name" in content or "server_name" not in self.values
        return _Merge(
            {**self.values, **content},
            {**self.origins, **dict.fromkeys(content, str(path))},
            str(path) if is_named else self.named_by,
        )

    def under(self, own: "_Merge") -> "_Merge":
        return _Merge({**self.values, **own.values}, {**self.origins, **own.origins}, own.named_by)

    def process(self) -> ProcessConfig:
        return ProcessConfig(file=self.named_by, values=self.values, origins=self.origins)


def _processes(shared: _Merge, own: Sequence[_Merge]) -> Iterator[ProcessConfig]:
    mains = [shared.under(one) for one in own if one.values.get("worker_app") == HOMESERVER_APP]
    if not mains and "server_name" in shared.values:
        yield shared.process()
    for main in mains:
        yield main.process()
    # Without one, the file of the main process may have a `worker_app` that was left in.
    whole = mains[:1] or [one for one in own if "server_name" in one.values]
    for one in own:
        if one.values.get("worker_app") == HOMESERVER_APP:
            continue
        # A worker does not start without a server_name: then the main process' file is among its own.
        needs_main = len(whole) == 1 and "server_name" not in {**shared.values, **one.values}
        yield (shared.under(whole[0]) if needs_main else shared).under(one).process()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if found := _ending(path, ".yaml"):
        return found
    others = ", ".join(printable(one.name) for one in _ending(path, ".yml")[:MAX_LOST])
    if others:
        raise ConfigError(
            f"{path} has no *.yaml file, and Synapse reads no other of a folder: rename {others}"
        )
    raise ConfigError(f"{path} has no *.yaml file: name the homeserver's configuration files")


def _ending(folder: Path, ending: str) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.name.endswith(ending) and one.is_file())
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror}") from error


def _marked(value: Any, file: str, key: str, unfilled: list[Unfilled]) -> Any:
    """The value, in which texts with a template's mark are `Template`; they are added to `unfilled`."""
    if isinstance(value, str):
        if (mark := _TEMPLATE.search(value)) is None:
            return value
        if len(unfilled) < MAX_MARKS:
            unfilled.append(Unfilled(file, printable(key), printable(mark[1] or mark[2])))
        return Template(value)
    if isinstance(value, list):
        return [_marked(one, file, key, unfilled) for one in value]
    if isinstance(value, dict):
        return {name: _marked(one, file, f"{key}.{name}", unfilled) for name, one in value.items()}
    return value


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, or else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, or else an empty one."""
    return value if isinstance(value, list) else []
