"""What is read from files: settings, and secrets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from synrepl import http_client
from synrepl.config.suggestion import suggestion
from synrepl.errors import ConfigError
from synrepl.ports.access import ALL_RIGHTS, Key, Right

__all__ = ["read_file", "read_keys", "read_secret"]


CERTIFICATE: Final = "certificate"
"""In place of a secret: the peer proves itself by a TLS certificate with its name."""


def read_file(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """What a YAML file sets. Unknown keys are refused, with the nearest known one."""
    import yaml  # here, for it is large, and who has no file does not need it

    try:
        found = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(f"{path}{where}: not YAML: {why}") from error
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML: {why}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected `key: value` lines")
    for key in found:
        if key not in known:
            raise ConfigError(
                f"{path}: there is no setting {key}{suggestion(str(key).replace('-', '_'), known)}"
            )
    return found


def read_secret(path: Path, warnings: list[str]) -> str:
    secret = http_client.read_secret(path)
    _warn_if_public(path, warnings)
    return secret


def read_keys(path: Path, warnings: list[str]) -> tuple[Key, ...]:
    """The keys of a file with a line ``name secret [rights [streams]]`` for each peer. Raises `ConfigError`.

    No message shows what stands in a line: it may be a secret.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the keys file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the keys file {path} is not text") from error
    _warn_if_public(path, warnings)
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if not 2 <= len(words) <= 4:
            raise ConfigError(f"{where}: expected a name, a secret, and perhaps rights and streams")
        name, secret, rights, streams = [*words, "", ""][:4]
        if name in keys:
            raise ConfigError(f"{where}: a second key for the same name")
        if not (name.isprintable() and secret.isascii() and secret.isprintable()):
            raise ConfigError(f"{where}: a name and a secret are made of plain characters")
        if any(secret == one.secret != CERTIFICATE for one in keys.values()):
            raise ConfigError(f"{where}: another key has the same secret; each needs its own")
        keys[name] = Key(
            name=name,
            secret=None if secret == CERTIFICATE else secret,
            rights=_rights(rights, where),
            streams=_streams(streams, where),
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
            raise ConfigError(f"{where}: the third word is all, or rights with commas between: {known}")
        found.add(Right(word))
    if Right.REPLICATE in found:
        found.add(Right.READ)
    return frozenset(found)


def _streams(text: str, where: str) -> frozenset[str] | None:
    if text in ("", "-"):
        return None
    names = text.split(",")
    if not all(names):
        raise ConfigError(f"{where}: the fourth word is names of streams with commas between")
    return frozenset(names)


def _warn_if_public(path: Path, warnings: list[str]) -> None:
    if path.stat().st_mode & 0o004:
        warnings.append(f"everyone on this machine can read the secret file {path}; say chmod 600 {path}")
