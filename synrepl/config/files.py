"""What is read from files: settings, and secrets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from synrepl import asking
from synrepl.config.near import suggestion
from synrepl.errors import ConfigError

__all__ = ["read_file", "read_keys", "read_secret"]


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
        raise ConfigError(f"{path}{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
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
    secret = asking.read_secret(path)
    _warn_if_public(path, warnings)
    return secret


def read_keys(path: Path, warnings: list[str]) -> Mapping[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the secret file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the secret file {path} is not text") from error
    _warn_if_public(path, warnings)
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] in keys:
            raise ConfigError(f"{path}, line {number}: expected the name of a replica, and its secret, once")
        keys[words[0]] = words[1]
    return MappingProxyType(keys)


def _warn_if_public(path: Path, warnings: list[str]) -> None:
    if path.stat().st_mode & 0o004:
        warnings.append(f"everyone on this machine can read the secret file {path}; say chmod 600 {path}")
