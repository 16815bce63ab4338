"""The settings of files."""

from pathlib import Path
from typing import Any

import pytest
from twisted.python.usage import UsageError

from tests.service.test_config import parsed, written

VALUES: list[tuple[str, str, Any, Any]] = [
    ("max_file_bytes", "1GiB", "1 GiB", 1024**3),
    ("files", "/srv/files", "/srv/files", Path("/srv/files")),
    ("fetch_files", "lazy", "lazy", "lazy"),
]


@pytest.mark.parametrize(("name", "flag", "in_file", "value"), VALUES)
def test_a_setting_can_be_given_as_a_flag_and_in_a_file(
    name: str, flag: str, in_file: Any, value: Any, tmp_path: Path
) -> None:
    """The same names, the same meaning."""
    path = written(tmp_path, **{name: in_file})

    assert getattr(parsed(f"--{name.replace('_', '-')}", flag), name) == value
    assert getattr(parsed("--config", str(path)), name) == value


def test_an_unknown_rule_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(UsageError) as caught:
        parsed("--fetch-files", "never")

    assert "--fetch-files must be eager or lazy" in str(caught.value)
