"""What a Redis server logs of clients that it cuts off, of copies, and of who broke into it."""

import pytest

from synrepl.homeserver.explanation import Passage, explain

HEAD = "9:M 22 Nov 2026 15:29:23.074 # "


def told(text: str) -> Passage:
    """Return the only passage of a text."""
    [passage] = explain(text).passages
    return passage


def cut_off(flags: str, sub: int, cmd: str, *, key: str = "id=5 addr") -> str:
    """Return what Redis logs of a client that does not read."""
    return (
        f"Client {key}=10.0.0.3:5501 fd=9 name= age=210 idle=103 flags={flags} db=0 sub={sub} psub=0 multi=-1"
        f" qbuf=0 qbuf-free=0 obl=0 oll=4102 omem=98005232 events=rw cmd={cmd} scheduled to be closed ASAP"
        " for overcoming of output buffer limits."
    )


@pytest.mark.parametrize(
    ("flags", "sub", "cmd", "means", "do"),
    [
        ("S", 0, "sync", "a replica", '"replica 512mb 128mb 60"'),
        ("M", 0, "psync", "a replica", '"replica 512mb 128mb 60"'),
        ("P", 1, "subscribe", "or was sent much at once", '"pubsub 64mb 16mb 60"'),
        ("N", 1, "subscribe", "or was sent much at once", '"pubsub 64mb 16mb 60"'),
        ("N", 0, "keys", "asked for more than it read in time", '"normal 0 0 0"'),
        ("O", 0, "monitor", "MONITOR", '"normal 0 0 0"'),
    ],
)
@pytest.mark.parametrize("head", ["", HEAD])
def test_a_client_that_was_cut_off_is_told_by_what_it_is(
    head: str, flags: str, sub: int, cmd: str, means: str, do: str
) -> None:
    passage = told(head + cut_off(flags, sub, cmd))

    assert passage.kind == "redis_too_slow"
    assert means in passage.words[0]
    assert "98,005,232 bytes" in passage.words[0]
    assert f"CONFIG SET client-output-buffer-limit {do}" in " | ".join(passage.advice)


def test_the_log_of_a_copy_that_is_cut_off_again_and_again_is_summed_up_so() -> None:
    """redis/redis#2315."""
    head = "[6027] 22 Jan 04:10:16.688 * "
    found = explain(
        f"{head}Slave ask for synchronization\n"
        f"{head}Starting BGSAVE for SYNC\n"
        f"{head}Background saving terminated with success\n"
        f"{head}Synchronization with slave succeeded\n"
        f"[6027] 22 Jan 04:13:46.009 # {cut_off('S', 0, 'sync', key='addr')}\n"
    )

    assert "never gets done" in found.summary
    assert found.unrecognized == 0


@pytest.mark.parametrize(
    "text",
    [
        # redis/redis#5592
        (
            "Failed opening the RDB file authorized_keys (in server root dir unknown) for saving: No such"
            " file or directory"
        ),
        "Failed opening the RDB file root (in server root dir /var/spool/cron) for saving: Permission denied",
        "Failed opening the RDB file crontab (in server root dir /etc) for saving: Read-only file system",
        "Failed opening the RDB file zzh (in server root dir /etc/cron.d) for saving: Permission denied",
        "Failed opening the RDB file backup.db (in server root dir /tmp) for saving: Permission denied",
        "Failed opening the RDB file red2.so (in server root dir /data) for saving: Permission denied",
        (
            "Error moving temp DB file temp-1.rdb on the final destination shell.php (in server root dir"
            " /var/www/html): Permission denied"
        ),
    ],
)
def test_a_file_of_data_that_an_attack_named_is_told_first_as_what_happened(text: str) -> None:
    found = explain(f"{HEAD}Background saving error\n{HEAD}{text}\n")
    passage = found.passages[0]

    assert (passage.kind, passage.severity) == ("redis_broken_into", "error")
    assert "treat the server as broken into" in passage.words[0]
    assert "treat the server as broken into" in found.summary
    assert passage.advice[0].startswith("close its port")
    assert "stop-writes-on-bgsave-error off cures nothing" in passage.words[1]


@pytest.mark.parametrize(
    "text",
    [
        "Failed opening the RDB file dump.rdb (in server root dir /data) for saving: Permission denied",
        "Failed opening the RDB file dump.rdb (in server root dir /etc/redis) for saving: Read-only",
        "Failed opening the temp RDB file temp-12.rdb (in server root dir /data) for saving: Read-only",
        "Failed opening .rdb for saving: Permission denied",
    ],
)
def test_a_file_of_data_with_its_usual_name_is_no_attack(text: str) -> None:
    passage = told(HEAD + text)

    assert passage.kind == "redis_save_failed"
    assert "broken into" not in " ".join([*passage.words, *passage.advice])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Module 'system' loaded from ./exp.so", "redis_broken_into"),
        ("Module 'system' loaded from /tmp/x.so", "redis_broken_into"),
        ("Module ./red2.so failed to load: It does not have execute permissions.", "redis_broken_into"),
        ("Module 'search' loaded from /opt/redis-stack/lib/redisearch.so", "redis_module"),
    ],
)
def test_a_module_is_told_by_its_file(text: str, kind: str) -> None:
    assert told(HEAD + text).kind == kind


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("REPLICAOF 8.8.8.8:8886 enabled (user request from 'id=3')", True),
        ("Connecting to MASTER 8.8.8.8:8886", True),
        ("Connecting to MASTER 10.0.0.8:6379", False),
        ("Connecting to MASTER redis-0:6379", False),
    ],
)
def test_a_copy_of_a_redis_in_the_internet_is_told_so_first(text: str, is_told: bool) -> None:
    passage = told(HEAD + text)

    assert ("treat the server as broken into" in passage.words[0]) == is_told


@pytest.mark.parametrize(
    ("name", "value", "is_told"),
    [
        ("dbfilename", "authorized_keys", True),
        ("dir", "/var/spool/cron/crontabs", True),
        ("dbfilename", "dump.rdb", False),
        ("dir", "/data", False),
        ("dir", "/etc/redis", False),
    ],
)
def test_settings_that_an_attack_left_are_told_first(name: str, value: str, is_told: bool) -> None:
    passage = told(f'127.0.0.1:6379> CONFIG GET {name}\n1) "{name}"\n2) "{value}"\n')

    assert ("treat the server as broken into" in passage.words[0]) == is_told
    assert (passage.severity == "error") == is_told


@pytest.mark.parametrize(
    ("text", "kind", "severity", "do"),
    [
        (
            (
                "1. command: 5 latency spikes (average 300ms, mean deviation 120ms, period 73.40 sec). Worst"
                " all time event 500ms."
            ),
            "redis_latency",
            "look",
            "SLOWLOG GET",
        ),
        (
            "2. fork: 1 latency spikes (average 900ms, mean deviation 0ms, period 7.00 sec).",
            "redis_latency",
            "look",
            'save ""',
        ),
        (
            "3. aof-fsync-always: 2 latency spikes (average 900ms, mean deviation 0ms, period 7.00 sec).",
            "redis_latency",
            "look",
            "appendonly no",
        ),
        (
            "I'm sorry, Dave, I can't do that. Latency monitoring is disabled in this Redis instance.",
            "redis_latency_off",
            "look",
            "latency-monitor-threshold 100",
        ),
        (
            "Dave, no latency spike was observed during the lifetime of this Redis instance, not in the",
            "redis_latency_none",
            "normal",
            "",
        ),
        (
            "Hi Sam, I can't find any memory issue in your instance. I can only account for what",
            "redis_memory_well",
            "normal",
            "",
        ),
        (
            " * High total RSS: This instance has a memory fragmentation and RSS overhead greater than 1.4",
            "redis_memory_kept",
            "look",
            "restart",
        ),
        (
            " * Big client buffers: The clients output buffers in this instance are greater than 200K per",
            "redis_memory_buffers",
            "look",
            "CLIENT LIST",
        ),
        (
            "=== REDIS BUG REPORT START: Cut & paste starting from here ===",
            "redis_crashed",
            "error",
            "newest",
        ),
        (f"{HEAD}Redis 7.0.5 crashed by signal: 11, si_code: 1", "redis_crashed", "error", "newest"),
        (f"{HEAD}=== ASSERTION FAILED ===", "redis_crashed", "error", "newest"),
    ],
)
def test_what_redis_says_of_its_own_troubles(text: str, kind: str, severity: str, do: str) -> None:
    passage = told(text)

    assert (passage.kind, passage.severity) == (kind, severity)
    assert do in " | ".join(passage.advice)


@pytest.mark.parametrize(
    ("text", "kind", "severity", "do"),
    [
        (
            "Can't save in background: fork: Cannot allocate memory",
            "redis_fork",
            "error",
            "overcommit_memory",
        ),
        (
            "Fatal: Can't initialize Background Jobs. Error message: Operation not permitted",
            "redis_threads",
            "error",
            "seccomp",
        ),
        (
            "Guru Meditation: Redis aborting for OUT OF MEMORY. Allocating 29998 bytes! #server.c:6",
            "redis_memory",
            "error",
            "maxmemory",
        ),
        (
            'Guru Meditation: "Redis aborting for OUT OF MEMORY" #redis.c:3034',
            "redis_memory",
            "error",
            "qbuf",
        ),
        (
            "Fatal error: can't open the RDB file dump.rdb for reading: Permission denied",
            "redis_own_files",
            "error",
            "chown",
        ),
        (
            "AOF loaded anyway because aof-load-truncated is enabled",
            "redis_aof_cut",
            "look",
            "why Redis or its machine ended",
        ),
        ("-failover-abort-not-elected master m 10.0.15.10 6379", "redis_no_leader", "error", "CKQUORUM"),
        ("-failover-abort-no-good-slave master m 10.0.15.10 6379", "redis_no_candidate", "error", "priority"),
        ("+switch-master m 10.0.0.1 6379 10.0.0.2 6379", "redis_switched", "look", "redis+sentinel://"),
        ("+tilt #tilt mode entered", "redis_tilt", "look", "chrony"),
        ("+new-epoch 1303", "redis_sentinel_runs", "normal", ""),
        ("6740f56579 voted for 065c8fe487 1303", "redis_sentinel_runs", "normal", ""),
        (
            "Marking node 5ce7d47fd8 as failing (quorum reached).",
            "redis_cluster_node",
            "look",
            "+10000",
        ),
        ("Client closed connection", "redis_client_ended", "normal", ""),
        (
            "Error accepting a client connection: error:1408F10B:SSL routines::wrong version number",
            "redis_tls_plain",
            "look",
            "rediss://",
        ),
        (
            "Error accepting a client connection: error:14094418:SSL routines::tlsv1 alert unknown ca",
            "redis_tls_distrust",
            "look",
            "ca_file",
        ),
        (
            "Error accepting a client connection: error:1417C086:SSL routines::certificate verify failed",
            "redis_tls_no_client",
            "look",
            "tls-auth-clients no",
        ),
        ("Error accepting a client connection: (null)", "redis_tls_ended", "look", "of a check"),
        ("Connection with master lost.", "redis_copy_again", "error", "repl-timeout"),
        ("Closing client that reached max query buffer length: id=1", "redis_query_buffer", "look", "parts"),
        (
            "Sorry, the cluster configuration file nodes.conf is already used by a different node",
            "redis_cluster_file",
            "error",
            "folder of its own",
        ),
        ("Background AOF rewrite finished successfully", "redis_runs", "normal", ""),
    ],
)
def test_a_line_of_a_server_a_sentinel_or_a_node_is_told_with_its_own_cure(
    text: str, kind: str, severity: str, do: str
) -> None:
    passage = told(HEAD + text)

    assert (kind, severity) == (passage.kind, passage.severity)
    assert do in " | ".join(passage.advice)


def test_a_crash_for_want_of_memory_is_summed_up_as_that() -> None:
    """redis/redis#5610."""
    head = "348:M 26 Nov 15:27:48.067 # "
    found = explain(
        f"{head}Can't save in background: fork: Cannot allocate memory\n"
        f"{head}Out Of Memory allocating 29998 bytes!\n\n"
        "=== REDIS BUG REPORT START: Cut & paste starting from here ===\n"
        f"{head}Guru Meditation: Redis aborting for OUT OF MEMORY\n"
    )

    assert found.summary.startswith("Redis could not make a copy of itself")
    assert "by a fault in it" not in str(found.passages)


def test_lines_of_keydb_and_of_signals_are_of_a_server() -> None:
    """Snapchat/KeyDB#312, hyperspike/valkey-operator#178."""
    found = explain(
        "14794:14793:S 04 Nov 2021 02:57:56.363 # == CRITICAL == This server is sending an error to its"
        " AOF-loading-client: 'Command must be sent from a master' after processing the command 'rreplay'\n"
        "valkey 1:signal-handler (1737901880) Received SIGTERM scheduling shutdown...\n"
    )

    assert {"redis_copy_differs", "redis_runs"} == {one.kind for one in found.passages}
    assert {"04 Nov 2021 02:57:56.363", "1737901880"} == {one.first_time for one in found.passages}


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("1234:M 2026-01-12T09:43:10.924-05:00 * {}", "2026-01-12T09:43:10.924-05:00"),
        ("FG:M 2026-01-12T09:43:10.924Z * {}", "2026-01-12T09:43:10.924Z"),
        ("1234:M 1768214590924 * {}", "1768214590924"),
        (
            'pid=1234 role=primary timestamp="12 Jan 2026 09:43:10.924" level=notice message="{}"',
            "12 Jan 2026 09:43:10.924",
        ),
    ],
)
def test_valkey_writes_the_time_as_it_is_told(line: str, time: str) -> None:
    """valkey-io/valkey#3044."""
    said = "Unable to partial resync with replica 10.0.0.1:6379 for lack of backlog (Replica request was: 3)."
    found = explain(line.format(said))

    assert [("redis_copy_lost", time)] == [(one.kind, one.first_time) for one in found.passages]
