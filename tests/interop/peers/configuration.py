"""Asks a real release how it reads configurations. Runs inside its environment, on Python 3.8 to 3.12.

Takes one JSON list of paths a line, as Synapse's ``-c``, and prints one JSON object for each: ``accepted``,
and if it is, ``name``, ``redis`` (None if it is off), ``writers``, ``instances`` and ``duties``. A duty that
this release decides later than in its configuration is left out.
"""

import contextlib
import io
import json
import logging
import sys
from typing import Any, Dict, List


def answer(paths: List[str]) -> Dict[str, Any]:
    """How this release reads these files."""
    from synapse.config.homeserver import HomeServerConfig

    arguments = [word for path in paths for word in ("-c", path)]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            config = HomeServerConfig.load_config("asked", arguments)
    except (Exception, SystemExit) as error:
        return {"accepted": False, "why": type(error).__name__, "text": str(error)[:300]}
    worker = config.worker
    return {
        "accepted": True,
        "name": worker.worker_name or "master",
        "redis": redis(config.redis),
        "writers": {
            name: [value] if isinstance(value, str) else list(value)
            for name, value in sorted(vars(worker.writers).items())
        },
        "instances": {
            ("master" if name == "main" else name): getattr(entry, "path", None)
            or "%s:%s" % (entry.host, entry.port)
            for name, entry in sorted(worker.instance_map.items())
        },
        "duties": duties(config),
    }


def redis(config: Any) -> Any:
    """The settings of Redis."""
    if not config.redis_enabled:
        return None
    names = ("host", "port", "path", "dbid", "username", "use_tls")
    return {name: getattr(config, "redis_" + name, None) for name in names}


def duties(config: Any) -> Dict[str, bool]:
    """Whether this process has each duty, if its configuration says so."""
    worker, found = config.worker, {}
    is_main = worker.worker_app is None
    names = [
        ("federation", worker, "send_federation", "pusher_shard_config" in vars(worker)),
        ("pushers", worker, "start_pushers", True),
        ("appservices", worker, "should_notify_appservices", True),
        ("user_directory", worker, "should_update_user_directory", True),
        ("background_tasks", worker, "run_background_tasks", True),
        # Older releases change these when a worker starts.
        ("federation", worker, "send_federation", is_main),
        ("pushers", config.server, "start_pushers", is_main),
        ("appservices", config.appservice, "notify_appservices", is_main),
        ("user_directory", config.server, "update_user_directory", is_main),
    ]
    for name, section, attribute, is_known in names:
        if is_known and name not in found and attribute in vars(section):
            found[name] = bool(getattr(section, attribute))
    return found


def main() -> None:
    """Answer line by line."""
    logging.disable(logging.CRITICAL)
    print(json.dumps({"event": "started"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)), default=str), flush=True)


if __name__ == "__main__":
    main()
