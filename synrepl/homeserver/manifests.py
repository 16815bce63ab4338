"""Files of Synapse and PgBouncer in other files: in manifests of Kubernetes, and in files of Docker Compose.

A ConfigMap, a Secret, or an entry of `configs` or `volumes` with its `content` has a file whole, as the
process gets it. Marks that something else fills in later stay in it, as they do in a file of Synapse's.
"""

import base64
import binascii
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from synrepl.config.config_files import load_documents, load_layers, template_in
from synrepl.errors import ConfigError
from synrepl.small_files import read_small_file

MANIFEST: Final = "apiVersion"
"""The key that each manifest has."""
_MARKS: Final = (b"apiVersion", b"content")
"""One of these is in each file that has others in it."""
_ENDS: Final = (".yaml", ".yml")


def load_parts(path: Path, keys: Iterable[str]) -> list[tuple[Path, list[Any]]]:
    """Read a file, or the files of Synapse that are in it: each with its layers (`load_layers`).

    Those with one of `keys` at the top count. Without any, the file itself is what there is. Raises
    `ConfigError` if it, or one in it, cannot be read.
    """
    content = read_small_file(path)
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ConfigError(f"{path} is text in UTF-16, with which Synapse does not start: save it as UTF-8")
    if not any(mark in content for mark in _MARKS):
        return [(path, load_layers(path, content))]
    known = frozenset(keys)
    documents = load_documents(content)
    found = []
    for name, text in _inside(documents, _ENDS):
        place = Path(f"{path}: {name}")
        layers = load_layers(place, text.encode(errors="replace"))
        if any(isinstance(layer, dict) and not known.isdisjoint(layer) for layer in layers):
            found.append((place, layers))
    if not found and kinds_of(documents) and (template := template_in(content)):
        raise ConfigError(f"{path} is {template}")
    if not found and len(documents) > 1 and (kinds := kinds_of(documents)):
        return [(path, [{MANIFEST: "", "kind": ", ".join(kinds)}])]
    return found or [(path, load_layers(path, content))]


def texts_in(path: Path, end: str) -> list[tuple[Path, str]]:
    """The files in this one whose names have this end, as far as names are told: place and text.

    Raises `ConfigError` if it cannot be read.
    """
    content = read_small_file(path)
    if not any(mark in content for mark in _MARKS):
        return []
    return [(Path(f"{path}: {name}"), text) for name, text in _inside(load_documents(content), (end,))]


def kinds_of(documents: Iterable[Any]) -> list[str]:
    """The kinds of the manifests among these documents, if all are manifests; otherwise none."""
    given = [one for one in documents if one is not None]
    kinds = [one.get("kind") for one in given if isinstance(one, dict) and MANIFEST in one]
    named = [kind for kind in kinds if isinstance(kind, str)]
    return list(dict.fromkeys(named)) if len(named) == len(given) else []


def _inside(documents: list[Any], ends: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The names and texts of the files in these documents."""
    if kinds_of(documents):
        for document in documents:
            yield from _of_manifest(document or {}, ends)
    elif len(documents) == 1 and isinstance(documents[0], dict):
        yield from _of_compose(documents[0], ends)


def _of_manifest(manifest: Mapping[str, Any], ends: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(items := manifest.get("items"), list):
        for one in items:
            yield from _of_manifest(one if isinstance(one, dict) else {}, ends)
        return
    named = _mapping(manifest, "metadata").get("name", manifest.get("kind"))
    is_secret = manifest.get("kind") == "Secret"
    for key in ("data", "stringData"):
        for name, text in _mapping(manifest, key).items():
            if isinstance(text, str) and str(name).endswith(ends):
                yield f"{named}/{name}", _decoded(text) if is_secret and key == "data" else text


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except binascii.Error:
        return ""


def _of_compose(document: Mapping[str, Any], ends: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    services = _mapping(document, "services")
    if not services:
        return
    for name, given in _mapping(document, "configs").items():
        if isinstance(given, dict) and isinstance(text := given.get("content"), str):
            yield str(name), text
    for service in services.values():
        volumes = service.get("volumes") if isinstance(service, dict) else None
        for one in volumes if isinstance(volumes, list) else ():
            if isinstance(one, dict) and isinstance(text := one.get("content"), str):
                name = Path(str(one.get("target", one.get("source", "")))).name
                if name.endswith(ends):
                    yield name, text


def _mapping(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, dict) else {}
