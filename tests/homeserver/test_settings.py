"""The settings of the homeserver, from flags, and from a file."""

from pathlib import Path

import pytest
import yaml

from synrepl.config import Settings
from synrepl.errors import ConfigError
from synrepl.homeserver.settings import homeserver_settings

LOCAL = "postgres:///synapse?host=/run/postgresql"
RULES = {"stream": "push_rules", "table": "push_rules_stream", "row": ["user_id"]}


def test_values_of_a_flag_and_of_a_file(tmp_path: Path) -> None:
    """They mean the same."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"tables_database": LOCAL, "homeserver": ["hs.yaml"]}))
    by_flags = homeserver_settings(Settings.build({"tables_database": LOCAL, "homeserver": ["hs.yaml"]}))
    by_file = homeserver_settings(Settings.build(file=path))

    assert LOCAL == by_flags.tables_database == by_file.tables_database
    assert (Path("hs.yaml"),) == by_flags.homeserver == by_file.homeserver


def test_only_published_writers_of_a_channel_are_read_from_tables() -> None:
    """Facts of other writers come from the channel."""
    without = homeserver_settings(Settings.build({"table_streams": [RULES]}))
    channel = {"redis": "redis://h", "redis_writes": ["push_rules"], "instance_name": "us"}
    with_channel = homeserver_settings(Settings.build({"table_streams": [RULES], **channel}))

    assert [()] == [one.only for one in without.followed_tables]
    assert [("us",)] == [one.only for one in with_channel.followed_tables]


def test_gaps_of_nothing_are_refused() -> None:
    """Live facts would have no source."""
    with pytest.raises(ConfigError, match="only fills gaps, and live facts have no source: set --redis or"):
        Settings.build({"table_streams": [RULES | {"catch_up": True}]})


def test_a_database_elsewhere_that_nothing_verifies_is_noted() -> None:
    """As that of the log."""
    built = Settings.build({"tables_database": "postgresql://synrepl@db.example/synapse"})

    (note,) = built.notes
    assert note.startswith("tables_database: nothing verifies that db.example is the server")
