"""Commands that look at a homeserver where no extra is installed."""

import json
from pathlib import Path
from typing import Final

from tests.cli.test_extras import POSTGRES, check_needed

NEED: Final = {
    "inspect --homeserver {folder}/homeserver.yaml": "redis",
    "doctor --homeserver {folder}/homeserver.yaml": "postgres",
    f"doctor --database {POSTGRES}": "postgres",
    "doctor --before-start --homeserver {folder}/homeserver.yaml": "postgres",
    "invalidate get_user_by_id @a:x --homeserver {folder}/homeserver.yaml --yes": "redis",
    f"streams --stuck --database {POSTGRES}": "postgres",
}
"""Commands that need an extra, and which."""

HOMESERVER: Final = {
    "server_name": "x",
    "database": {"name": "psycopg2", "args": {"user": "a", "host": "127.0.0.1", "port": 1}},
    "redis": {"enabled": True, "host": "127.0.0.1", "port": 1},
}


def test_a_command_without_its_extra_says_which_to_install(tmp_path: Path) -> None:
    """With a failure, and never with a traceback."""
    (tmp_path / "homeserver.yaml").write_text(json.dumps(HOMESERVER))
    check_needed(NEED, tmp_path)
