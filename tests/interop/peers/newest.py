"""What Synapse's newest release does with its database when it starts, up to where it would listen.

newest.py [--server-name S] DSN

Makes the tables when they are missing. Prints one JSON object: ``{"event": "ready", "release": ...}``, or
``{"event": "refused", "why": ...}`` with what it tells its operator. DSN is in libpq's form.
"""

import argparse
import json
import tempfile
from pathlib import Path

import synapse
from synapse.app.homeserver import create_homeserver, setup
from synapse.config.homeserver import HomeServerConfig
from synapse.logging.context import LoggingContext


def settings(server_name, dsn, folder):
    log = folder / "log.yaml"
    log.write_text('{"version": 1, "root": {"level": "CRITICAL"}}')
    config = {
        "server_name": server_name,
        "listeners": [],
        "report_stats": False,
        "database": {
            "name": "psycopg2",
            # The database of a test is in the C locale; cp_* are of the pool of connections.
            "allow_unsafe_locale": True,
            "args": {"dsn": dsn, "cp_min": 1, "cp_max": 2},
        },
        "log_config": str(log),
        "signing_key_path": str(folder / "signing.key"),
        "media_store_path": str(folder / "media"),
        "pid_file": str(folder / "pid"),
        "trusted_key_servers": [],
        "macaroon_secret_key": "test",
        "form_secret": "test",
    }
    path = folder / "homeserver.yaml"
    path.write_text(json.dumps(config))
    HomeServerConfig.load_or_generate_config("", ["-c", str(path), "--generate-keys"])
    return HomeServerConfig.load_config("", ["-c", str(path)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-name", default="test")
    parser.add_argument("dsn")
    options = parser.parse_args()
    said = {"event": "ready", "release": synapse.__version__}
    with tempfile.TemporaryDirectory() as folder:
        config = settings(options.server_name, options.dsn, Path(folder))
        with LoggingContext(name="main", server_name=options.server_name):
            try:
                setup(create_homeserver(config))
            except Exception as error:
                said = {"event": "refused", "why": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
