"""What Synapse's newest release does with its database when it starts, up to where it would listen.

newest.py [--server-name S] [--stay] DSN

Makes the tables when they are missing. Prints one JSON object: ``{"event": "ready", "release": ...}``, or
``{"event": "refused", "why": ...}`` with what it tells its operator. DSN is in libpq's form. With --stay it
runs until the end of stdin, and sets account data for each line there: ``{"event": "wrote", "token": ...}``.
"""

import argparse
import json
import sys
import tempfile
import threading
from pathlib import Path

import synapse
from synapse.app.homeserver import create_homeserver, setup
from synapse.config.homeserver import HomeServerConfig
from synapse.logging.context import LoggingContext
from twisted.internet import defer, reactor

ATTEMPTS = 20


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
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("dsn")
    options = parser.parse_args()
    said = {"event": "ready", "release": synapse.__version__}
    with tempfile.TemporaryDirectory() as folder:
        config = settings(options.server_name, options.dsn, Path(folder))
        with LoggingContext(name="main", server_name=options.server_name):
            try:
                homeserver = create_homeserver(config)
                setup(homeserver)
            except Exception as error:
                said = {"event": "refused", "why": "%s: %s" % (type(error).__name__, error)}
        print(json.dumps(said), flush=True)
        if options.stay and said["event"] == "ready":
            threading.Thread(target=read_lines, args=(homeserver,), daemon=True).start()
            reactor.run()


def read_lines(homeserver):
    for number, _ in enumerate(sys.stdin):
        reactor.callFromThread(write, homeserver, number, ATTEMPTS)
    reactor.callFromThread(reactor.stop)


def write(homeserver, number, attempts):
    """As a client does, which repeats its request: one fails for each lost connection to the database."""
    store = homeserver.get_datastores().main
    with LoggingContext(name="write", server_name="test"):
        done = defer.ensureDeferred(
            store.add_account_data_for_user("@user:test", "org.example.test", {"number": number})
        )
    done.addCallbacks(
        lambda token: print(json.dumps({"event": "wrote", "token": token}), flush=True),
        lambda failure: failed(failure, homeserver, number, attempts - 1),
    )


def failed(failure, homeserver, number, attempts):
    if attempts:
        reactor.callLater(0.1, write, homeserver, number, attempts)
    else:
        print(json.dumps({"event": "failed", "why": str(failure)}), flush=True)


if __name__ == "__main__":
    main()
