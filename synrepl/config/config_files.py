"""Readers of the configuration file, the secret file and the keys file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from synrepl.base.access import ALL_RIGHTS, Key, Right, names_error
from synrepl.errors import ConfigError, suggest
from synrepl.missing_rooms import why_missing
from synrepl.small_files import read_small_file

CERTIFICATE: Final = "certificate"
"""In place of a secret in the keys file: the peer authenticates by a TLS certificate with the key's name."""


def read_file(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """Read the settings of a YAML file. Raises `ConfigError`, also for a key that is not in `known`."""
    found = read_yaml(path)
    for key in found:
        if key not in known:
            name = str(key).replace("-", "_")
            why = f"; {missing}" if (missing := why_missing("settings", name)) else suggest(name, known)
            raise ConfigError(f"{path}: there is no setting {key}{why}")
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings, of at most a mebibyte. Raises `ConfigError`."""
    found = load_yaml(path)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} has no settings at its top: expected `key: value` lines")
    return found


def load_yaml(path: Path) -> Any:
    """Read a YAML file of at most a mebibyte, whatever is in it. Raises `ConfigError`."""
    from synrepl.config.bounded_yaml import BoundedLoader

    return _load(path, BoundedLoader)


def load_layers(path: Path, content: bytes | None = None) -> list[Any]:
    """Read a YAML file as `load_yaml` does, as several values if keys at its top are repeated.

    A template's mark that is a whole value without quotes is a text, as one with quotes is. The `content`
    is that of a file in another one, of which `path` is the place.
    """
    from synrepl.config.bounded_yaml import LayeredLoader

    found: list[Any] = _load(path, LayeredLoader, quotes_marks=True, content=content)
    return found


def load_documents(content: bytes) -> list[Any]:
    """Read all documents of a YAML file; none if it is no YAML."""
    import yaml  # Imported late: large, and needed only with a file.

    from synrepl.config.bounded_yaml import BoundedLoader

    try:
        return list(yaml.load_all(content, BoundedLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []


_MARK: Final = re.compile(
    rb"(?P<before>(?:^|[:\[,]|-(?= ))[ \t]*)(?P<mark>\{\{[ \t]*[\w.]{1,100}[^{}\n]{0,500}\}\})"
    rb"(?=[ \t]*(?:[,\]}]|\r?$|[ \t]#))",
    re.MULTILINE,
)
"""A mark that is a whole value. In YAML it is a mapping whose key is a mapping, which nobody means."""


def _quoted(content: bytes) -> bytes:
    """The content with such marks in quotes."""
    return _MARK.sub(lambda one: one["before"] + b"'" + one["mark"].replace(b"'", b"''") + b"'", content)


RENDER: Final = "what `helm template NAME CHART -f VALUES` writes"
_STATEMENT: Final = re.compile(rb"\{\{-?([^{}]{1,300})")
"""The beginning of a statement of a template. Words are sought in it alone, so that no text takes long."""
_HELM: Final = re.compile(rb"(?:^|[\s(])(?:\$?\.(?:Values|Release|Chart|Files)\b|include |define |tpl )")
_GO: Final = re.compile(
    rb"(?:^|[\s(])"
    rb"(?:\$?\.Env\b|\.Data\.|secret \"|key \"|env \"|tmpl\.|base64\.|file\.|datasource )"
)
"""Words of gomplate, of Vault's agent and of Consul's templates."""


def template_in(content: bytes) -> str:
    """Say what template this is, and what to give; "" if no statement of a known kind is in it."""
    statements = _STATEMENT.findall(content)
    if any(map(_GO.search, statements)):
        return "a template (its marks are those of gomplate, or of Vault's agent): give the file made from it"
    if any(map(_HELM.search, statements)):
        return f"a template of Helm that was not rendered: give {RENDER}"
    if b"{%" in content:
        return "a template of Jinja, as Ansible has them: give the file that was made from it"
    return ""


NO_YAML: Final = {
    ".nix": "give the files that the units of NixOS name (systemctl cat matrix-synapse)",
    ".md": "give each block as a file of its own",
}
"""What other files are in which settings are written, by how their names end."""
_FIRST_LINES: Final = (
    (r"#!", "a script: run it, and give the files that it writes"),
    (r"(?:ARG|FROM) \S", "the description of an image (Dockerfile): give the files of the container"),
    (
        r"(?:resource|module|locals|variable|provider|terraform|template|auto_auth)\b[^:]*\{",
        "in HCL, as for Terraform or Vault's agent: give the files that are made by it",
    ),
    (r"\[(?:Unit|Service|Container)\]", "a unit of systemd: give the files that its ExecStart names"),
    (r"(?:docker|podman) ", "a command that starts a container: give the files of that"),
    (
        r"(?:class|define|node) '?[\w:.-]+'?\s*(?:inherits \S+\s*)?[({]",
        "a manifest of Puppet: give the files that it writes on the server",
    ),
    (r"<%", "a template (ERB or EPP, as Puppet and Chef have them): give the file that is made from it"),
    (
        r"(?:template|file|cookbook_file|package|service) ['\"].*\bdo$",
        "a recipe of Chef: give the files it writes",
    ),
    (r"(?:import|from) [\w.]+(?: |$)", "a program in Python: give the files that it writes"),
    (
        (
            r"(?:server|upstream \S+|map \S+ \S+|http|location \S.*)\s*\{$"
            r"|<(?:VirtualHost|IfModule|Location)\b"
            r"|(?:frontend|backend|listen) \S+$|global$|defaults$|[\w.*-]+\.[\w.*:-]+ \{$"
        ),
        "a configuration of a proxy: give Synapse's homeserver.yaml, and the files of its workers",
    ),
    (r"(?:export )?\w+=", "an environment: give the files of the process, or of its container"),
    (r"\[[\w.:\" -]+\]$", "INI or TOML, and no YAML"),
)
"""Programs in which settings are written, by the beginning of their first line that is no comment."""


def program_in(content: bytes) -> str:
    """Say what program this is, and what to give; "" for none that is known."""
    lines = (line.strip()[:200] for line in content.decode("utf-8", "replace").splitlines())
    told = (line for line in lines if line.startswith("#!") or (line and line[0] not in "#;"))
    first = next(told, "")
    found = next((what for mark, what in _FIRST_LINES if re.match(mark, first)), "")
    by_image = (
        ", with those of /conf and /conf/workers, which the image makes at its start (SYNAPSE_WORKER_TYPES)"
    )
    return found + by_image * (bool(found) and b"SYNAPSE_WORKER_TYPES" in content)


YAML_HINTS: Final = {
    "mapping values are not allowed here": "two settings in one line, or a text with a colon, which needs"
    " quotes",
    "character '\\t'": "spaces in place of tabs",
}
"""What is meant by words of the YAML reader."""


def _load(path: Path, loader: Any, *, quotes_marks: bool = False, content: bytes | None = None) -> Any:
    import yaml  # Imported late: large, and needed only with a file.

    if content is None:
        content = read_small_file(path)
    try:
        try:
            found = yaml.load(content, loader)  # noqa: S506 (it is a SafeLoader)
        except yaml.YAMLError:
            if not quotes_marks or (quoted := _quoted(content)) == content:
                raise
            found = yaml.load(quoted, loader)  # noqa: S506
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        if path.suffix in NO_YAML:
            raise ConfigError(f"{path} is no YAML: {NO_YAML[path.suffix]}") from error
        if program := program_in(content):
            raise ConfigError(f"{path} is {program}") from error
        if "another document" in why:
            at = where.removeprefix(",")
            raise ConfigError(
                f"{path} has several documents, and the next begins at{at}: give each as a file of its own"
            ) from error
        if template := template_in(content):
            raise ConfigError(f"{path} is {template}") from error
        why += next((f" ({hint})" for words, hint in YAML_HINTS.items() if words in why), "")
        if b"{{" in content:
            why += " (it has marks of a template: give the file that was made from it)"
        raise ConfigError(f"{path}{where}: not YAML: {why}") from error
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML: {why}") from error
    # Lines that have no colon are one text.
    is_text = all(isinstance(one, str) for one in (found if isinstance(found, list) else [found]))
    if found and is_text and (program := program_in(content)):
        raise ConfigError(f"{path} is {program}")
    return found


def read_secret(path: Path, warnings: list[str]) -> str:
    """Read the shared secret. Raises `ConfigError`; adds to `warnings` if every user can read the file."""
    from synrepl import http_client  # late: a daemon without a secret has no use for it

    secret = http_client.read_secret(path)
    _warn_if_public(path, warnings)
    return secret


def read_keys(path: Path, warnings: list[str]) -> tuple[Key, ...]:
    """Read a file with a line ``name secret [rights [streams [instances]]]`` for each peer.

    Raises `ConfigError`. Adds to `warnings` as `read_secret` does. No message quotes a line: any word of it
    may be a secret.
    """
    try:
        text = read_small_file(path, "the keys file").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the keys file {path} is not UTF-8 text") from error
    _warn_if_public(path, warnings)
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if not 2 <= len(words) <= 5:
            raise ConfigError(
                f"{where}: expected a name, a secret, and optionally rights, streams, instances"
            )
        name, secret, rights, streams, instances = [*words, "", "", ""][:5]
        if name in keys:
            raise ConfigError(f"{where}: an earlier line has the same name; remove one of the two lines")
        if not (name.isprintable() and secret.isascii() and secret.isprintable()):
            raise ConfigError(f"{where}: the name must be printable text, the secret printable ASCII")
        if any(secret == one.secret != CERTIFICATE for one in keys.values()):
            raise ConfigError(f"{where}: another key has the same secret; give each peer its own")
        keys[name] = Key(
            name=name,
            secret=None if secret == CERTIFICATE else secret,
            rights=_rights(rights, where),
            streams=_names(streams, f"{where}: the fourth word", "streams"),
            instances=_names(instances, f"{where}: the fifth word", "instances"),
        )
    return tuple(keys.values())


def _rights(text: str, where: str) -> frozenset[Right]:
    if text in ("", "-"):
        return frozenset({Right.READ, Right.WRITE, Right.REPLICATE})
    if text == "all":
        return ALL_RIGHTS
    found = set()
    for word in text.split(","):
        if word not in list(Right):
            known = ", ".join(Right)
            raise ConfigError(f"{where}: the third word must be `all`, `-` or rights out of {known}")
        found.add(Right(word))
    if Right.REPLICATE in found:
        found.add(Right.READ)
    return frozenset(found)


def _names(text: str, where: str, what: str) -> frozenset[str] | None:
    if text in ("", "-"):
        return None
    names = text.split(",")
    if names == ["*"]:
        raise ConfigError(f"{where} is `*`, which is no name: `-` stands for all {what}")
    if why := names_error(names, what):
        raise ConfigError(f"{where}: {why}; separate them by single commas")
    return frozenset(names)


def _warn_if_public(path: Path, warnings: list[str]) -> None:
    if path.stat().st_mode & 0o004:
        warnings.append(f"every user of this machine can read the secret file {path}; run chmod 600 {path}")
