"""Words of PostgreSQL, PgBouncer, Redis, proxies and programs that ask, each with its own cause."""

import pytest

from synrepl.homeserver.explanation import explain

NGINX = "2024/01/01 00:00:00 [error] 29#29: *1 "


@pytest.mark.parametrize(
    ("key", "text", "do"),
    [
        (
            "pg_replay_failed",
            (
                "2020-10-11 18:14:47.199 UTC [16901] FATAL:  unexpected data beyond EOF in block 76469 of"
                " relation base/18516/22231"
            ),
            "copy of the whole folder first",
        ),
        ("pg_replay_failed", "PANIC:  could not locate a valid checkpoint record", "pg_resetwal"),
        ("pg_start_ended", "LOG:  startup process (PID 16901) exited with exit code 1", "FATAL or PANIC"),
        (
            "pg_diverged",
            (
                '2021-02-22 16:15:35.691 CST,,,1524,,6033.5f4,77,,,1,0,LOG,00000,"new timeline 52 forked'
                ' off current database system timeline 51 before current recovery point 0/B00000A0",,,,,,""'
            ),
            "pg_rewind",
        ),
        (
            "pg_slot_missing",
            'FATAL:  could not start WAL streaming: ERROR:  replication slot "repmgr_slot_4" does not exist',
            "pg_create_physical_replication_slot",
        ),
        (
            "pg_standby_waits",
            "FATAL:  could not start WAL streaming: ERROR:  something else",
            "pg_stat_replication",
        ),
        ("pg_archive_failed", "LOG:  archive command failed with exit code 45", "pg_stat_archiver"),
        ("pg_not_postgres", "LOG:  incomplete startup packet", "pg_isready"),
        ("pg_tls_client", "LOG:  could not accept SSL connection: EOF detected", "scanner: nothing to do"),
        ("pg_panic", "PANIC:  could not fsync file: Structure needs cleaning", "dmesg"),
        ("disk_full", 'PANIC:  could not write to file "pg_wal/x": No space left on device', "make room"),
        ("db_client_pool", "psycopg_pool.PoolTimeout: couldn't get a connection after 30.00 sec", "max_size"),
        (
            "db_client_pool",
            "[psycopg.pool] - discarding closed connection: <psycopg.Connection [BAD] at 0x7f>",
            "check_connection",
        ),
        (
            "db_pooler_fault",
            "FATAL @src/server.c:583 in function server_proto(): server_proto: server in bad state: 11",
            "1.21.0",
        ),
        (
            "db_pooler_client",
            "C-0x7fb: (nodb)/(nouser)@172.10.31.18:50270 pooler error: client_login_timeout",
            "SHOW POOLS",
        ),
        ("db_pooler", "pooler error: client_login_timeout (server down)", "PostgreSQL runs"),
        ("pgpool_mismatch", "DETAIL:  kind does not match between main(52) slot[2] (63)", "pcp_detach_node"),
        ("pgpool_node", "health_check0 pid 9927: LOG:  health check failed on node 0", "pcp_attach_node"),
        ("redis_client_sentinel", "redis.sentinel.MasterNotFoundError: No master found for 'm'", "26379"),
        ("redis_client_cluster", "ERR This instance has cluster support disabled", "for a single Redis"),
        ("redis_client_reset", "[ioredis] Unhandled error event: Error: read ECONNRESET", "rediss://"),
        (
            "redis_client_reset",
            "Error: Redis connection to x.cache.amazonaws.com:6379 failed - read ECONNRESET",
            "pingInterval",
        ),
        ("redis_unknown_command", "-unsupported command 'HELLO'", "protocol=2"),
        ("redis_not_a_copy", "SYNC and PSYNC are invalid with pending output", "before PSYNC"),
        ("redis_checked_file", "AOF analyzed: size=184, ok_up_to=178, diff=6", "is lost"),
        ("redis_rights", "NOPERM this user has no permissions to run the 'hello' command", "+hello"),
        ("patroni_store", "2022-07-25 11:04:56,803 ERROR: failed to update leader lock", "retry_timeout"),
        (
            "patroni_demoted",
            "INFO: demoted self because failed to update leader lock in DCS",
            "failsafe_mode",
        ),
        (
            "patroni_other",
            "CRITICAL: system ID mismatch, node a belongs to a different cluster: 1 != 2",
            "reinit",
        ),
        (
            "pg_folder",
            'FATAL:  could not write to file "pg_wal/xlogtemp.34": Operation not permitted',
            "libseccomp",
        ),
        (
            "pg_no_shared_memory",
            "FATAL:  could not map anonymous shared memory: Cannot allocate memory",
            "shared_buffers",
        ),
        (
            "pg_lock_file",
            "LOG:  performing immediate shutdown because data directory lock file is invalid",
            "mount it again",
        ),
        ("pg_rows_damaged", "ERROR:  found xmin 123 from before relfrozenxid 456", "pg_amcheck"),
        (
            "pg_process_ended",
            "LOG:  checkpointer process (PID 4) was terminated by signal 9: Killed",
            "oom-kill",
        ),
        (
            "pg_timeouts",
            "FATAL:  terminating connection due to transaction timeout",
            "transaction_timeout = 0",
        ),
        (
            "pg_too_large",
            "psycopg2.errors.ProgramLimitExceeded: index row size 2736 exceeds btree version 4 maximum 2704",
            "update",
        ),
        (
            "pg_sequence_bounds",
            'ERROR:  nextval: reached maximum value of sequence "x" (2147483647)',
            "AS bigint",
        ),
        ("pg_made_already", 'ERROR:  database "synapse" already exists', "dropdb"),
        ("pg_extension", 'ERROR:  could not access file "$libdir/postgis-3": No such file', "another image"),
        (
            "pg_restore_owner",
            'could not execute query: ERROR: must be able to SET ROLE "postgres"',
            "--no-owner",
        ),
        (
            "pg_restore_full",
            'could not execute query: ERROR:  relation "events" already exists',
            "do not start Synapse on it",
        ),
        (
            "pg_restore_file",
            "pg_restore: error: input file appears to be a text format dump. Please use psql.",
            "PGDMP",
        ),
        ("db_address_wrong", 'psycopg2.OperationalError: invalid port number: "x"', "database:"),
        (
            "db_not_postgres",
            "psycopg2.OperationalError: received invalid response to SSL negotiation: H",
            "ss -ltnp",
        ),
        (
            "db_tls_files",
            'server certificate for "x" does not match host name "y"',
            "verify-full asks for the name",
        ),
        ("redis_client_closed", "Error: The client is closed", "await client.connect()"),
        (
            "redis_client_slow",
            "Timeout performing GET (5000ms), next: GET MyKey, inst: 0, qu: 0, qs: 7, aw: False",
            "SLOWLOG GET",
        ),
        (
            "redis_client_unreached",
            "Could not connect to Redis at 127.0.0.1:6379: Connection refused",
            "redis-cli -h HOST",
        ),
        ("redis_no_password", "Client sent AUTH, but no password is set. Trying again", "requirepass"),
        ("redis_no_users", "ERR wrong number of arguments for 'auth' command", "username out of redis:"),
        ("redis_sentinel_answer", "(error) NOQUORUM 1 usable Sentinels. Not enough available", "CKQUORUM"),
        ("redis_key_kind", "WRONGTYPE Operation against a key holding the wrong kind of value", "prefix"),
    ],
)
def test_what_a_server_a_pooler_or_a_client_logs_is_told_with_its_own_cure(
    key: str, text: str, do: str
) -> None:
    [passage] = explain(text).passages

    assert key == passage.kind
    assert do in " | ".join(passage.advice)


def test_what_a_server_said_is_no_fault_of_the_package_that_passed_it_on() -> None:
    """redis/redis-py#2707."""
    [passage] = explain(
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/site-packages/redis/connection.py", line 882, in read_response\n'
        "    raise response\n"
        "redis.exceptions.NoPermissionError: this user has no permissions to access one of the channels used"
        " as arguments\n"
    ).passages

    assert "redis_rights" == passage.kind
    assert "no part of Synapse" not in " ".join(passage.words)
    assert not any(step.startswith("update redis") for step in passage.advice)


def test_a_cancelled_statement_or_a_restart_of_a_pooler_is_told_beside_its_fault() -> None:
    """pgbouncer/pgbouncer#822."""
    found = explain(
        "2023-04-03 15:14:20.360 AEST [9558] LOG C-0x55: (nodb)/(nouser)@10.2.0.24:45874 closing because:"
        " failed cancel request (age=0s)\n"
        "2023-04-03 15:14:20.397 AEST [9558] LOG C-0x55: d/u@10.2.0.1:35114 login attempt: db=d user=u"
        " tls=no\n"
        "2023-04-03 15:14:20.460 AEST [9558] FATAL @src/server.c:583 in function server_proto():"
        " server_proto: server in bad state: 11\n"
    )

    assert ["db_pooler_fault", "db_pooler_server_ended", "db_pooler_runs"] == [
        one.kind for one in found.passages
    ]
    assert 0 == found.unrecognized


@pytest.mark.parametrize(
    ("key", "text", "do"),
    [
        (
            "db_idle_ended",
            "FATAL:  terminating connection due to idle-in-transaction timeout",
            "pool_mode = session",
        ),
        (
            "db_idle_session",
            "FATAL:  terminating connection due to idle-session timeout",
            "idle_session_timeout = 0",
        ),
        (
            "db_crashed",
            "WARNING:  terminating connection because of crash of another server process",
            "signal 9",
        ),
        (
            "db_multixact",
            "ERROR:  MultiXactId 1234 has not been created yet -- apparent wraparound",
            "copy of the folder",
        ),
        ("db_multixact", "ERROR:  MultiXactId 34 does no longer exist -- apparent wraparound", "pg_dump"),
        (
            "db_wraparound",
            "ERROR:  database is not accepting commands that generate new MultiXactIds to avoid wraparound",
            "as a superuser",
        ),
        ("db_row_raced", "ERROR:  tuple concurrently updated", "once more"),
        (
            "db_depended_on",
            (
                "ERROR:  cannot drop table events because other objects depend on it\nDETAIL:  view x depends"
                " on table events\nHINT:  Use DROP ... CASCADE to drop the dependent objects too."
            ),
            "no CASCADE",
        ),
        (
            "db_depended_on",
            'ERROR:  role "synapse" cannot be dropped because some objects depend on it',
            "REASSIGN OWNED",
        ),
        ("db_cancelled", "ERROR:  canceling statement due to user request", "application_name"),
        ("db_recovery_conflict", "ERROR:  canceling statement due to conflict with recovery", "the primary"),
        (
            "db_template",
            (
                "createdb: error: database creation failed: ERROR:  new encoding (UTF8) is incompatible with"
                " the encoding of the template database (SQL_ASCII)"
            ),
            "--template=template0",
        ),
        (
            "db_template",
            (
                "ERROR:  new collation (C) is incompatible with the collation of the template database"
                " (en_US.UTF-8)\nHINT:  Use the same collation as in the template database, or use template0"
                " as template."
            ),
            "--template=template0",
        ),
        (
            "db_encoding",
            (
                'ERROR:  character with byte sequence 0xf0 0x9f in encoding "UTF8" has no equivalent in'
                ' encoding "LATIN1"'
            ),
            "SHOW server_encoding",
        ),
        ("db_null_char", "ERROR:  unsupported Unicode escape sequence", "event_json"),
        ("db_memory", "ERROR:  out of memory\nDETAIL:  Failed on request of size 1073741824.", "work_mem"),
        (
            "pg_wal_removed",
            (
                "FATAL:  could not receive data from WAL stream: ERROR:  requested WAL segment 0000000100 has"
                " already been removed"
            ),
            "pg_basebackup",
        ),
        (
            "pg_wal_removed",
            'ERROR:  can no longer get changes from replication slot "debezium"',
            "new snapshot",
        ),
        (
            "patroni_none",
            "2026-08-21 22:01:35,167 INFO: My wal position exceeds maximum replication lag",
            "maximum_lag_on_failover",
        ),
        ("db_client_cut", "Error: Connection terminated unexpectedly", "pool.on('error', ...)"),
        ("pg_checkpoint_wal", "LOG:  checkpoint starting: wal", "max_wal_size"),
        ("pg_slots", 'ERROR:  replication slot "debezium" is active for PID 1234', "pg_terminate_backend"),
        (
            "db_lock_wait",
            (
                "LOG:  process 21 still waiting for ShareLock on transaction 758 after 1000.123 ms\n"
                "DETAIL:  Process holding the lock: 20. Wait queue: 21."
            ),
            "pg_blocking_pids",
        ),
        ("db_in_use", 'ERROR:  database "synapse" is being accessed by other users', "WITH (FORCE)"),
        (
            "db_index_damaged",
            (
                "psycopg2.errors.IndexCorrupted: table tid from new index tuple (1,2) overlaps with invalid"
                " duplicate tuple at offset 3"
            ),
            "REINDEX",
        ),
        (
            "db_unique_broken",
            (
                "psycopg2.errors.CardinalityViolation: more than one row returned by a subquery used as an"
                " expression"
            ),
            "enable_indexscan = off",
        ),
        (
            "db_files_gone",
            'FATAL:  could not open file "global/pg_filenode.map": No such file or directory',
            "which volume",
        ),
        ("db_chores", 'LOG:  temporary file: path "base/pgsql_tmp/pgsql_tmp1.0", size 1073741824', ""),
        (
            "db_tls_needed",
            "FATAL:  SSL connection is required. Please specify SSL options and retry.",
            "sslmode",
        ),
        ("sqlite_file", "sqlite3.OperationalError: database or disk is full", "df -h"),
        ("db_pooler_name", "ERROR:  no such database: synapse", "[databases]"),
        ("db_pooler", "ERROR:  query_wait_timeout", "default_pool_size (20 if not set)"),
        (
            "redis_no_password",
            "ERR AUTH <password> called without any password configured for the default user",
            "out",
        ),
        (
            "redis_password",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "compare redis: password",
        ),
        ("redis_busy", "BUSY Redis is busy running a script. You can only call SCRIPT KILL", "SCRIPT KILL"),
        ("redis_no_copies", "NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write 0"),
        ("redis_unknown_command", "ERR unknown command 'HELLO'", "protocol=2"),
        (
            "redis_subscribed",
            (
                "ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are"
                " allowed"
            ),
            "second connection",
        ),
        ("redis_not_spoken", "ERR Protocol error: invalid bulk length", "use_tls"),
        (
            "redis_copy_lost",
            (
                "13538:M 28 Feb 10:25:03.137 * Unable to partial resync with slave 10.4.8.6:6379 for lack of"
                " backlog"
            ),
            "repl-backlog-size",
        ),
        (
            "redis_tls_plain",
            (
                "1:M 01 Jan 2024 00:00:00.000 # Error accepting a client connection: error:1408F10B:SSL"
                " routines:ssl3_get_record:wrong version number"
            ),
            "use_tls",
        ),
        ("redis_cluster_down", "1:M 01 Jan 2024 00:00:00.000 # Cluster state changed: fail", "CLUSTER NODES"),
        (
            "redis_save_failed",
            "1:M 01 Jan 2024 00:00:00.000 # Write error saving DB on disk(rdbSaveRio): No",
            "save",
        ),
        (
            "proxy_hash",
            "[emerg] could not build map_hash, you should increase map_hash_bucket_size: 64",
            "128",
        ),
        (
            "proxy_uri_part",
            '[emerg] 1#1: "proxy_pass" cannot have URI part in location given by regular expression',
            "nothing after the port",
        ),
        (
            "proxy_context",
            '[emerg] 1#1: "upstream" directive is not allowed here in /etc/nginx/a.conf:12',
            "http { }",
        ),
        (
            "proxy_no_resolver",
            f"{NGINX}no resolver defined to resolve synapse, client: 1.2.3.4",
            "127.0.0.11",
        ),
        ("proxy_traefik", 'level=error msg="middleware \\"foo@docker\\" does not exist"', "labels"),
        (
            "proxy_client_tls",
            (
                f"{NGINX}SSL_do_handshake() failed (SSL: error:0A00006C:SSL routines::bad key share) while"
                " SSL handshaking, client: 1.2.3.4, server: 0.0.0.0:443"
            ),
            "fullchain.pem",
        ),
        ("proxy_upstream", "upstream request timeout", "timeout: 0s"),
        ("proxy_upstream", "no healthy upstream", "ready"),
        (
            "proxy_upstream",
            "AH00959: ap_proxy_connect_backend disabling worker for (127.0.0.1:8008) for 60s",
            "retry=0",
        ),
        ("proxy_upstream", f"{NGINX}upstream sent no valid HTTP/1.0 header while reading response", "TLS"),
        (
            "proxy_upstream",
            "upstream connect error or disconnect/reset before headers. reset reason: connection timeout",
            "network",
        ),
        (
            "proxy_upstream",
            (
                "upstream connect error or disconnect/reset before headers. retried and the latest reset"
                " reason: remote connection failure, transport failure reason: delayed connect error: 111"
            ),
            "see whether that process runs",
        ),
        ("proxy_limits", "haproxy[1]: Proxy https reached process FD limit (maxsock=4000).", "ulimit"),
        (
            "http_cut",
            (
                "urllib3.exceptions.ProtocolError: ('Connection aborted.', RemoteDisconnected('Remote end"
                " closed connection without response'))"
            ),
            "ask again",
        ),
        (
            "http_cut",
            "curl: (92) HTTP/2 stream 1 was not closed cleanly: INTERNAL_ERROR (err 2)",
            "a limit of a proxy",
        ),
        ("http_cut", "curl: (56) Recv failure: Connection reset by peer", "ask again"),
        (
            "http_cut",
            "GET https://m/_matrix/client/v3/sync net::ERR_INCOMPLETE_CHUNKED_ENCODING 200 (OK)",
            "a limit of a proxy",
        ),
        ("http_version", "HTTP/1.1 426 Upgrade Required", "proxy_http_version 1.1"),
        ("tls", "curl: (60) SSL certificate problem: unable to get local issuer certificate", "issuer"),
        ("address_none", "curl: (6) Could not resolve host: matrix.example.org", "getent hosts"),
        ("http_503", "No server is available to handle this request.", "the server that is down"),
        ("proxy_too_large", "HTTP Error 413: Request Entity Too Large", "client_max_body_size"),
        (
            "proxy_upstream",
            f"{NGINX}upstream server temporarily disabled while reading response header from upstream",
            "proxy_read_timeout",
        ),
        (
            "http_waited",
            (
                "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='h', port=8008): Read timed out."
                " (read timeout=30)"
            ),
            "longer than the timeout=",
        ),
        (
            "http_cors",
            (
                "Access to fetch at 'https://m/_matrix/client/versions' from origin 'https://app' has been"
                " blocked by CORS policy: No 'Access-Control-Allow-Origin' header"
            ),
            "curl -i",
        ),
        (
            "http_cors",
            "/sync error Error: CORS request rejected: https://m/_matrix/client/r0/sync?timeout=30000",
            "curl -i",
        ),
        (
            "http_browser",
            "NetworkError when attempting to fetch resource.",
            "/_synapse/admin",
        ),
        (
            "http_browser",
            "GET https://m/_matrix/client/versions net::ERR_NETWORK_CHANGED",
            "browser's own network",
        ),
    ],
)
def test_words_of_a_server_are_told_with_their_own_cure(key: str, text: str, do: str) -> None:
    [passage] = explain(text).passages

    assert key == passage.kind
    assert do in " | ".join(passage.advice)


def test_a_worker_that_nginx_holds_for_down_is_named() -> None:
    [passage] = explain(
        f"{NGINX}upstream server temporarily disabled while reading response header from upstream, client:"
        ' 1.2.3.4, server: m, request: "GET / HTTP/1.1", upstream: "http://127.0.0.1:8083/"'
    ).passages

    assert passage.words[0].startswith("Nginx asks 127.0.0.1:8083 nothing for a while")


def test_a_worker_that_apache_holds_for_down_is_named() -> None:
    [passage] = explain(
        "AH00959: ap_proxy_connect_backend disabling worker for (127.0.0.1:8008) for 60s"
    ).passages

    assert passage.words[0].startswith("Apache asks 127.0.0.1:8008 nothing for a while")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (
            "jemalloc_there",
            "synapse.metrics.jemalloc - 178 - DEBUG - main - Found jemalloc at /usr/lib/libjemalloc.so.2",
        ),
        ("jemalloc_missing", "synapse.metrics.jemalloc - 175 - DEBUG - main - jemalloc not found"),
        (
            "devices_stale",
            (
                "synapse.handlers.e2e_keys - 207 - ERROR - POST-1 - Devices for {'@bob:remote'} were cached,"
                " but the server no longer shares any rooms with them. The cached device lists are stale."
            ),
        ),
        (
            "cfg_expiry_time",
            (
                "synapse.config.cache - 251 - WARNING - - You have set two incompatible flags, expiry_time"
                " and expire_caches. Please only use the expire_caches"
            ),
        ),
    ],
)
def test_lines_about_caches_are_known(key: str, text: str) -> None:
    assert [key] == [one.kind for one in explain(f"2022-01-01 00:00:00,000 - {text}").passages]


LATE = (
    '{}upstream timed out (110: Connection timed out) while reading, client: 1.2.3.4, request: "{} HTTP/2.0",'
    ' upstream: "http://127.0.0.1:8008/"'
)


@pytest.mark.parametrize(
    ("request_line", "do"),
    [
        ("GET /_matrix/client/v3/sync?timeout=30000", "proxy_read_timeout must be longer"),
        ("POST /_matrix/client/v3/join/%23synapse:matrix.org", "to join a large room takes minutes"),
        ("GET /_matrix/media/v3/download/a.b/c", "a large file takes long"),
        ("PUT /_matrix/client/r0/rooms/!abc%3Aa/send/m.room.encrypted/m123", "pg_stat_activity"),
    ],
)
def test_an_answer_that_is_late_is_told_by_what_was_asked_for(request_line: str, do: str) -> None:
    """A /sync waits on purpose; to send a message does not (matrix-org/synapse#9422)."""
    [passage] = explain(LATE.format(NGINX, request_line)).passages

    assert 1 == len(passage.advice)
    assert do in passage.advice[0]


def test_a_vacuum_that_removes_everything_is_normal() -> None:
    """It says how many rows it could not remove, also if there are none."""
    [passage] = explain("tuples: 5 removed, 200216 remain, 0 are dead but not yet removable").passages

    assert ("db_dead_rows", "normal") == (passage.kind, passage.severity)


@pytest.mark.parametrize(
    ("server", "status", "state", "asked", "severity", "said"),
    [
        # No server was asked, which tells nothing of those behind it.
        ("<NOSRV>", 400, "PR", "<BADREQ>", "look", "the request is no valid HTTP (400)"),
        ("<NOSRV>", 403, "PR", "GET /_synapse/admin/v1/users HTTP/1.1", "look", "a rule forbids it (403)"),
        ("<NOSRV>", 503, "SC", "GET /_matrix/client/v3/sync HTTP/1.1", "look", "all of hs are down"),
        ("<NOSRV>", 408, "cR", "<BADREQ>", "normal", "did not send a whole request"),
        ("w1", 502, "PH", "GET /_matrix/client/v3/sync HTTP/1.1", "look", "the answer of hs/w1"),
        ("w1", 503, "PC", "GET /_matrix/client/v3/sync HTTP/1.1", "look", "limit of sockets"),
        (
            "w1",
            503,
            "RC",
            "GET /_matrix/client/v3/sync HTTP/1.1",
            "look",
            "port left for a connection to hs/w1",
        ),
    ],
)
def test_what_haproxy_refuses_is_not_of_the_servers_behind_it(
    server: str, status: int, state: str, asked: str, severity: str, said: str
) -> None:
    [passage] = explain(
        f"haproxy[1]: 10.0.0.1:1234 [01/Jan/2023:10:00:00.000] https~ hs/{server} 0/-1/-1/-1/3 {status} 217"
        f' - - {state}-- 1/1/0/0/3 0/0 "{asked}"'
    ).passages

    assert (passage.kind, passage.severity) == ("proxy_request", severity)
    assert said in passage.words[0]


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        (
            "proxy_upstream",
            (
                "upstream sent invalid chunked response while reading upstream, client: 1.2.3.4, server: m,"
                ' request: "GET /x HTTP/2.0", upstream: "http://127.0.0.1:8083/x", host: "m"'
            ),
            "The answer of 127.0.0.1:8083 is no valid HTTP",
        ),
        (
            "proxy_upstream",
            (
                'time="2023-01-01T00:00:00Z" level=warning msg="Could not find network named'
                " 'web' for container '/synapse'! Maybe you're missing the project's prefix in the label?"
                " Defaulting to first"
                ' available network."'
            ),
            "Traefik is to take synapse's address",
        ),
        ("proxy_traefik", 'level=error msg="unable to find service hs@docker" routerName=hs', "not use that"),
        ("proxy_traefik", 'level=error msg="entryPoint \\"https\\" doesn\'t exist"', "an entry point"),
        ("proxy_traefik", 'level=error msg="service \\"hs\\" error: port is missing"', "a port"),
    ],
)
def test_lines_of_nginx_and_traefik_are_told(key: str, text: str, said: str) -> None:
    [passage] = explain((NGINX if text.startswith("upstream") else "") + text).passages

    assert passage.kind == key
    assert said in passage.words[0]


@pytest.mark.parametrize(
    ("key", "text", "do"),
    [
        (
            "http_504",
            "requests.exceptions.HTTPError: 504 Server Error: Gateway Time-out for url: https://h/x",
            "600s",
        ),
        (
            "http_504",
            "aiohttp.ClientResponseError: 504, message='Gateway Time-out', url='https://h/x'",
            "600s",
        ),
        ("http_504", "urllib.error.HTTPError: HTTP Error 504: Gateway Time-out", "600s"),
        ("http_504", "HTTP status server error (504 Gateway Timeout) for url (https://h/x)", "600s"),
        (
            "http_504",
            "httpx.HTTPStatusError: Server error '504 Gateway Time-out' for url 'https://h/x'",
            "600s",
        ),
        ("http_504", "failed to GET /_matrix/client/r0/sync: 504 Gateway Time-out", "same since="),
        ("http_504", "<head><title>504 Gateway Time-out</title></head>", "600s"),
        ("http_504", "AxiosError: Request failed with status code 504", "600s"),
        ("http_502", "curl: (22) The requested URL returned error: 502", "error log"),
        (
            "http_502",
            "msg=Failed to POST JSON to /_matrix/client/r0/register:  code=502 wrapped=.",
            "error log",
        ),
        ("http_503", "503 Server Error: Service Temporarily Unavailable for url: https://h/x", "Retry-After"),
        (
            "http_500",
            "httpx.HTTPStatusError: Server error '500 Internal Server Error' for url 'http://h/x'",
            "log",
        ),
        ("http_401", "401 Client Error: Unauthorized for url: http://h/x", "Authorization"),
        ("http_403", "403 Client Error: Forbidden for url: http://h/x", "errcode"),
        ("http_404", "404 Client Error: Not Found for url: http://h/x", "M_UNRECOGNIZED"),
        (
            "http_redirect",
            "Redirect response '301 Moved Permanently' for url 'http://h/x'",
            "that address itself",
        ),
        (
            "http_lines",
            "requests.exceptions.JSONDecodeError: Extra data: line 2 column 1 (char 120)",
            "iter_lines",
        ),
        ("http_lines", "Attempt to decode JSON with unexpected mimetype: application/x-ndjson", "iter_lines"),
        ("http_page", "Attempt to decode JSON with unexpected mimetype: text/html", "curl -i"),
        ("http_page", "SyntaxError: Unexpected token < in JSON at position 0", "curl -i"),
        ("http_long_line", "ValueError: Chunk too big", "read_bufsize"),
        (
            "http_long_line",
            "aiohttp.http_exceptions.LineTooLong: 400, Got more than 524288 bytes",
            "read_bufsize",
        ),
        ("http_504", "the server returned an error: [504] <non-json bytes>", "600s"),
        ("http_waited", "/sync error ORG.MATRIX.JSSDK_TIMEOUT: Locally timed out waiting", "first /sync"),
        (
            "web_serves_api",
            (
                '[error] 200#200: *16 open() "/var/www/x/_synapse/admin/v1/rooms" failed (2: No such file or'
                ' directory), client: 1.2.3.4, server: x, request: "GET /_synapse/admin/v1/rooms HTTP/1.1"'
            ),
            "Synapse's own port",
        ),
        ("no_resource", "  <head><title>404 - No Such Resource</title></head>", "/_synapse/admin"),
        ("http_404", "<head><title>404 Not Found</title></head>", "Synapse's own port"),
        ("http_504", "WARN Unhandled IO error, error: Sync returned 504", "600s"),
        (
            "http_unreachable",
            'POST https://h:8448/x HTTP null Error: {"code":"ETIMEDOUT","connect":true}',
            "8448",
        ),
        (
            "http_unreachable",
            (
                "Get https://h:8448/x: net/http: request canceled while waiting for connection"
                " (Client.Timeout exceeded while awaiting headers)"
            ),
            "firewall",
        ),
        ("http_waited", "** (HTTPoison.Error) :timeout", "longer than"),
        ("http_waited", "initial sync error: (connection: Timeout was reached)", "first /sync"),
        ("tls", "(connection: SSL peer certificate or SSH remote key was not OK)", "issuer"),
        ("http_cut", "(connection: Server returned nothing (no headers, no data))", "ask again"),
        ("http_pool", "httpx.PoolTimeout", "max_connections"),
        ("http_unreachable", "httpx.ConnectError: All connection attempts failed", "nothing listens"),
        (
            "http_unreachable",
            "Cannot connect to host 127.0.0.1:9093 ssl:default [Connect call failed]",
            "ss -ltnp",
        ),
        (
            "http_unreachable",
            "curl: (7) Failed to connect to 127.0.0.1 port 9093 after 0 ms",
            "Nothing was sent",
        ),
        ("http_no_http", "curl: (1) Received HTTP/0.9 when not allowed", "9092"),
        (
            "http_no_http",
            'transport connection broken: malformed HTTP response "\\x15\\x03\\x01"',
            "https://",
        ),
        (
            "http_cut",
            "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
            "ask again",
        ),
        ("http_cut", "httpx.ReadError", "ask again"),
        ("http_cut", "hyper::Error(IncompleteMessage)", "ask again"),
        ("http_waited", "aiohttp.SocketTimeoutError: Timeout on reading data from socket", "longer than"),
        ("http_waited", "error sending request for url (http://h/x): operation timed out", "longer than"),
        ("tls", "tls: failed to verify certificate: x509: certificate signed by unknown authority", "issuer"),
        ("tls", "Error: unable to verify the first certificate", "issuer"),
        ("proxy_too_large", "413 Client Error: Request Entity Too Large for url: https://h/x", "too_large"),
        ("rate_limited", "429 Client Error: Too Many Requests for url: https://h/x", "retry"),
        ("proxy_cloudflare", "<title>h | 524: A timeout occurred</title>", "ask again"),
    ],
)
def test_errors_of_clients_are_told_whatever_library_they_are_of(key: str, text: str, do: str) -> None:
    [passage] = explain(text).passages

    assert key == passage.kind
    assert do in " | ".join([*passage.words, *passage.advice])


@pytest.mark.parametrize(
    "text",
    [
        'dtypes differ, got Datetime(Milliseconds, Some("+00:00")), expected Datetime(Milliseconds, None)',
        "cannot extend/append Datetime('ms', 'UTC') with Datetime('ms', '+00:00')",
        "data type mismatch for column b: expected: datetime[ns, +01:00], found: datetime[ns, Etc/GMT-1]",
        "data type mismatch for column t: incoming: Datetime('μs', 'Europe/Rome') != target: Datetime('μs')",
        'dtypes differ for column t: Timestamp(Nanosecond, None) != Timestamp(Microsecond, Some("UTC"))',
    ],
)
def test_times_of_two_types_in_files_of_a_table(text: str) -> None:
    """Two names of one zone (pola-rs/polars#13760), none and one, other zones, other units."""
    [passage] = explain(f"polars.exceptions.SchemaError: {text}").passages
    said = " ".join([*passage.words, *passage.advice])

    assert passage.kind == "times_of_two_types"
    assert "#13816" in said
    assert "UTC in microseconds" in said


@pytest.mark.parametrize(
    "text",
    [
        "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        "httpx.ReadTimeout",
        "500 Server Error: Internal Server Error for url: https://h/x",
        "502 Server Error: Bad Gateway for url: https://h/x",
        "504 Server Error: Gateway Time-out for url: https://h/x",
    ],
)
def test_a_post_without_an_answer_is_repeated_with_its_key_alone(text: str) -> None:
    """It was told of GET alone, and an append may be stored though no answer came (psf/requests#4937)."""
    [passage] = explain(text).passages

    assert "repeat it only with the same key (synrepl: idempotency_key" in " ".join(passage.advice)


@pytest.mark.parametrize(
    ("cause", "said", "do"),
    [
        (
            "SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')",
            "certificate",
            "verify=FILE",
        ),
        ("NameResolutionError('Failed to resolve')", "has no address", "getent"),
        ("ConnectTimeoutError: ConnectTimeout", "did not answer to a connection", "firewall"),
        (
            "NewConnectionError('[Errno 111] Connection refused')",
            "nothing was sent",
            "listens at that address",
        ),
    ],
)
def test_why_requests_got_no_connection_is_told(cause: str, said: str, do: str) -> None:
    line = f"HTTPSConnectionPool(host='h', port=443): Max retries exceeded with url: /v1 (Caused by {cause})"
    [passage] = explain(f"requests.exceptions.ConnectionError: {line}").passages

    assert said in " ".join(passage.words)
    assert do in " ".join(passage.advice)


def test_a_path_of_media_is_of_the_process_with_the_media_repository() -> None:
    [passage] = explain(
        '1.2.3.4 - - [22/Dec/2022] "GET /_synapse/admin/v1/users/@a:h/media?dir=b HTTP/1.1" 404 62'
    ).passages

    assert "the resource media, in a process that has the media repository" in " ".join(passage.advice)


def test_a_traceback_of_a_client_is_of_another_program() -> None:
    [passage] = explain(
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.8/site-packages/aiohttp/connector.py", line 969, in _wrap\n'
        "    return await self._loop.create_connection(*args)\n"
        "ValueError: an unknown one"
    ).passages

    assert "which Synapse does not use" in " ".join(passage.words)
    assert not any("update aiohttp" in one for one in passage.advice)


def test_an_address_of_the_container_itself_is_said_to_be_that() -> None:
    [passage] = explain('Get "https://h/x": dial tcp 127.0.0.1:443: connect: connection refused').passages

    assert "that container itself" in passage.advice[1]


@pytest.mark.parametrize(
    ("reason", "do"),
    [
        ("Layer4 connection problem", "listens at that address"),
        ("Layer4 timeout", "firewall"),
        ("Layer6 invalid response", "check-ssl"),
        ("Layer7 timeout", "load"),
        ("Layer7 wrong status, code: 401", "/health"),
        ("Health analyze, info: x", "info:"),
    ],
)
def test_why_a_server_is_down_is_told_by_the_reason_of_haproxy(reason: str, do: str) -> None:
    [passage] = explain(
        f"haproxy[1]: Server synapse/w1 is DOWN, reason: {reason}, check duration: 2ms."
    ).passages

    assert "synapse/w1" in passage.words[0]
    assert do in passage.advice[0]


def test_a_backend_without_servers_is_not_told_by_requests_that_nobody_sent() -> None:
    [passage] = explain("haproxy[1]: backend 'synapse' has no server available!").passages

    assert "HAProxy holds all servers of synapse for down, or has none there" in passage.words[0]
