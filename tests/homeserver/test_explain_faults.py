"""Faults of releases, what exceptions mean by their kind, and reports of the tenth round."""

import pytest

from synrepl.homeserver.explanation import Passage, explain
from synrepl.homeserver.explanation.background_tasks import TASKS
from synrepl.homeserver.explanation.exceptions import told_of_exception
from synrepl.homeserver.explanation.faults import ReleaseFault, find_fault, known_faults
from synrepl.homeserver.explanation.messages import known_messages
from synrepl.wire.dialect import parse_release

HEAD = "2026-11-02 10:00:00,000 - {} - 1 - {} - GET-7 - "


def logged(logger: str, level: str, message: str) -> str:
    return f"{HEAD.format(f'synapse.{logger}', level)}{message}\n"


def traced(file: str, exception: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "/usr/lib/python3/dist-packages/{file}", line 12, in it\n'
        "    it(\n"
        f"{exception}\n"
    )


def said(passage: Passage) -> str:
    return " ".join([*passage.words, *passage.advice])


@pytest.mark.parametrize("fault", known_faults(), ids=lambda one: one.says[0][:40])
def test_a_fault_is_found_by_what_it_says(fault: ReleaseFault) -> None:
    """Each row by itself: none is hidden behind another, and its words are those of a sentence."""
    text = " ... ".join(fault.says)
    found = find_fault([text], [f"{one}x.py" if one.endswith("/") else one for one in fault.files[-1:]])

    assert fault.source in (found.source if found else "")
    assert fault.means.endswith(".")
    assert "#" in fault.source or "changelog" in fault.source
    assert not fault.do.endswith(".")
    if fault.since and fault.until and "rc" not in fault.since:
        assert parse_release(fault.since) < parse_release(fault.until)


@pytest.mark.parametrize(
    ("text", "kind", "severity", "words"),
    [
        # matrix-org/synapse#16591
        (
            logged("storage.background_updates", "ERROR", "Error doing update")
            + traced("synapse/storage/databases/main/pusher.py", "TypeError: 'int' object is not iterable"),
            "update_failed",
            "error",
            "mended in 1.96",
        ),
        # The same words of another file are another fault (matrix-org/synapse#3715).
        (
            logged("handlers.presence", "ERROR", "Exception in _handle_timeouts loop")
            + traced("synapse/handlers/presence.py", "TypeError: 'int' object is not iterable"),
            "presence_failed",
            "error",
            "Only presence is concerned",
        ),
        # And of no file that is known, none.
        (
            traced("synapse/handlers/typing.py", "TypeError: 'int' object is not iterable"),
            "traceback",
            "error",
            "By its kind that is a fault of the program",
        ),
        (
            "builtins.AttributeError: 'SynchrotronSlavedStore' object has no attribute 'is_support_user'",
            "worker_lacks",
            "error",
            "a state of the development before 0.34.1",
        ),
        # element-hq/synapse#19042
        (
            logged("util.metrics", "ERROR", "Metric named cache_x already registered for server a.example"),
            "release_fault",
            "normal",
            "nothing is to be done",
        ),
        # A section that is empty (element-hq/synapse#19986).
        (
            traced("synapse/config/email.py", "AttributeError: 'NoneType' object has no attribute 'get'"),
            "does_not_fit",
            "error",
            "a section is there and empty",
        ),
        # A value, and no package (element-hq/synapse#5404).
        (
            traced("synapse/handlers/message.py", "AttributeError: 'NoneType' object has no attribute 'get'"),
            "does_not_fit",
            "error",
            "By its kind that is a fault of the program",
        ),
        # matrix-org/synapse#12780: without the line that logged it
        (
            traced("synapse/storage/background_updates.py", "KeyError: 'event_fix_redactions_bytes'"),
            "update_failed",
            "error",
            "that this release does not know",
        ),
        # element-hq/synapse#19465
        (
            logged("http.server", "ERROR", "Failed handle request via 'SyncRestServlet': <R>")
            + traced(
                "synapse/storage/databases/main/events_worker.py", "KeyError: '$0Kx2OcxmdAxlyCXYJQkKEQ2'"
            ),
            "client_request_failed",
            "error",
            "is not in the database",
        ),
        # matrix-org/synapse#13026: it failed here, and not at the other homeserver
        (
            logged(
                "federation.sender.per_destination_queue",
                "ERROR",
                "TX [a.example] Failed to send transaction",
            )
            + traced(
                "synapse/storage/databases/main/state.py",
                "RuntimeError: No state group for unknown or outlier event $a",
            ),
            "fed_tx_failed",
            "error",
            "it failed in this process, and not there",
        ),
    ],
)
def test_what_failed_is_told_with_what_is_known_of_it(
    text: str, kind: str, severity: str, words: str
) -> None:
    [passage] = explain(text).passages

    assert (kind, severity) == (passage.kind, passage.severity)
    assert words in said(passage)
    assert not [step for step in passage.advice if step.startswith("read the traceback")]


@pytest.mark.parametrize(
    ("exception", "frames", "means"),
    [
        ("AssertionError", ["synapse/handlers/sync.py"], "what should always hold"),
        ("FirstError[#0, [Failure instance: Traceback: <class 'TypeError'>: no", [], "fault of the program"),
        ("KeyError: 'a'", ["synapse/config/tls.py"], "read its configuration"),
        ("KeyError: 'a'", ["synapse/state/v2.py"], "it is not there"),
        ("psycopg2.errors.InternalError: x", [], "reports a fault of its own"),
        ("sqlite3.InterfaceError: x", [], "SQLite's driver"),
        ("psycopg2.InterfaceError: x", [], "on a connection that is closed"),
        ("StopIteration: []", [], ""),
        ("no exception at all", [], ""),
    ],
)
def test_what_an_exception_means_by_its_kind(exception: str, frames: list[str], means: str) -> None:
    told = told_of_exception(exception, frames)

    assert means in (told.means if told else "")
    assert bool(means) == (told is not None)


PUT = "PUT /_matrix/federation/v1/send/1692749941953"
SEND = "PUT matrix-federation://a.example/_matrix/federation/v1/send/1692749941953"
OLD_PATH = "http://localhost:29318/transactions/44428"


@pytest.mark.parametrize(
    ("text", "words", "never"),
    [
        # matrix-org/synapse#16208, and the receiver's side (element-hq/synapse#17576, #17739)
        (
            logged(
                "http.matrixfederationclient",
                "WARNING",
                f"{{PUT-O-1}} [a.example] Request failed: {SEND}: HttpResponseException('404: Not Found')",
            ),
            "update to 1.92",
            "nothing is to be done",
        ),
        (
            logged(
                "federation.sender.per_destination_queue",
                "WARNING",
                "TX [a.example] Received 404 response to transaction: 404: Not Found",
            ),
            "1.87 to 1.90",
            "nothing is to be done",
        ),
        (
            f'134.1.x.x - - [15/Aug/2024:20:27:05 +0200] "{PUT} HTTP/1.1" 401 85 "-" "Synapse/1.90.0"',
            "Its sender runs Synapse 1.90",
            "nothing is to be done",
        ),
        (
            f'134.1.x.x - - [15/Aug/2024:20:27:05 +0200] "{PUT} HTTP/1.1" 404 85 "-" "Synapse/1.120.0"',
            "does not get to a process with federation",
            "without a pause",
        ),
        # The old path of application services (mautrix/whatsapp#698), and no answer (matrix-org/synapse#4231)
        (
            logged(
                "http.client", "INFO", f"Received response to PUT {OLD_PATH}?access_token=<redacted>: 404"
            ),
            "update Synapse to 1.81",
            "see the log of that service",
        ),
        (
            logged("appservice.api", "WARNING", f"push_bulk to {OLD_PATH} received code=404 msg=Not Found"),
            "update Synapse to 1.81",
            "and not of Synapse",
        ),
        (
            logged(
                "appservice.api",
                "WARNING",
                "push_bulk to http://a:1/transactions/3 threw exception [<CancelledError: >]",
            ),
            "in the time that Synapse waits",
            "accepts hs_token",
        ),
        # The client's fault and its reason
        (
            logged(
                "http.server",
                "INFO",
                "<XForwardedForRequest at 0x7f method='POST' uri='/_matrix/client/v3/keys/upload'"
                " clientproto="
                "'HTTP/1.1' site='8008'> SynapseError: 400 - One time key signed_curve25519:A already"
                " exists.",
            ),
            "log that device out and in again",
            "for 5xx",
        ),
        # pgbouncer/pgbouncer#1094
        (
            "FATAL:  server login has been failing, try again later (server_login_retry)",
            "see PgBouncer's own log",
            "default_pool_size",
        ),
        # A line that was broken before the address (spantaleev/matrix-docker-ansible-deploy#2498)
        (
            (
                "2023/02/16 21:12:59 [error] 22#22: *926 connect() failed (111: Connection refused) while"
                " connecting to"
                ' upstream, client: 127.0.0.1, \nserver: , request: "GET /a HTTP/1.0", upstream:'
                ' "http://127.0.0.1:8008/a", host: "a"'
            ),
            "Nothing listens at 127.0.0.1:8008",
            "at the process",
        ),
        # A traceback in one line (matrix-org/synapse#7841), and by syslog
        (
            (
                'Traceback (most recent call last):   File "/usr/lib/runpy.py", line 193, in _run    '
                " exec(code)   File"
                ' "/x/synapse/app/homeserver.py", line 30, in <module>     from twisted import log'
                " ImportError: cannot"
                " import name 'log' from 'twisted.python' (unknown location)"
            ),
            "install it again, as a whole",
            "cut off",
        ),
        (
            (
                "Aug 13 11:44:36 host journal: matrix-synapse synapse.storage.txn - 561 - WARNING - PUT-1 -"
                " [TXN OPERROR]"
                ' {x} could not extend file "base/1": No space left on device#012HINT:  Check free'
                " disk space.#012 1/5"
            ),
            "A disk is full",
            "#012",
        ),
        # Rows that refer to what is to be removed (element-hq/synapse#19822, matrix-org/synapse#12907)
        (
            'Key (room_id)=(!a) is still referenced from table "sliding_sync_joined_rooms_to_recalculate".',
            "DELETE FROM sliding_sync_joined_rooms_to_recalculate",
            "was not copied yet",
        ),
        (
            'update or delete on table "rooms" violates foreign key constraint "x_fkey" on table "x"',
            "still refer",
            "was not copied yet",
        ),
        (
            logged("storage.SQL", "DEBUG", "[SQL FAIL] {purge_room-9b} FOREIGN KEY constraint failed"),
            "A statement to the database failed, of purge_room-9b",
            "normal",
        ),
        # A flood of a process without Redis (spantaleev/matrix-docker-ansible-deploy#2853)
        (
            logged(
                "replication.tcp.handler", "WARNING", "Dropping command as not connected: 'REMOTE_SERVER_UP'"
            ),
            "1.87 to 1.90",
            "other commands are lost",
        ),
        # element-hq/synapse#5612
        (
            logged("push.emailpusher", "ERROR", "Exception processing notifs")
            + traced(
                "synapse/push/mailer.py",
                "twisted.mail._except.SMTPConnectError: Unable to connect to server.",
            ),
            "see smtp_host and smtp_port",
            "not known here",
        ),
        # What a unit does before its start (spantaleev/matrix-docker-ansible-deploy#790)
        (
            (
                "    Process: 327517 ExecStartPre=/usr/bin/env docker kill matrix-synapse (code=exited,"
                " status=1/FAILURE)"
            ),
            "removes a container of an earlier run",
            "ended by itself",
        ),
        # A module that is not of this release (element-hq/synapse#17325)
        (
            traced(
                "synapse/media/storage_provider.py",
                "TypeError: S3StorageProviderBackend.fetch() takes 3 positional arguments but 5 were given",
            ),
            "update the module that has that class",
            "no setting is wrong",
        ),
        # Joins of large rooms (element-hq/synapse#16980, #19448), and how grep and nexy's logs write them
        (
            logged("handlers.federation_event", "INFO", "Updating state for $H_h1mqnAkXjIg7BKpQZoEDAF"),
            "ends with State resync complete",
            "failed",
        ),
        (
            (
                "master-all.log:2026-02-10 03:10:05,887 INFO"
                " synapse.storage.util.partial_state_events_tracker (GET-321652): Awaiting"
                " un-partial-stating of room !ef2bukT8lUpCA5NxkhMkqGEsn58bCBxI"
            ),
            "its resync stands still",
            "not known",
        ),
        # The end of a traceback is missing (spantaleev/matrix-docker-ansible-deploy#449)
        (
            "\n".join(
                f'2026-04-10 11:36:31,580 - twisted - 192 - ERROR -  -   File "/x/synapse/{file}.py", line 7'
                for file in ("server", "storage/data_stores/__init__", "storage/database")
            ),
            "about to connect to the database",
            "not known",
        ),
        # Logins by an identity provider (element-hq/synapse#18476, #12530, matrix-org/synapse#13747, #12226)
        (
            logged("handlers.oidc", "ERROR", "Invalid id_token")
            + traced(
                "authlib/jose/rfc7515/jws.py",
                "authlib.jose.errors.UnsupportedAlgorithmError: unsupported_algorithm:",
            ),
            "no encryption key, for this client",
            "update authlib",
        ),
        (
            logged("handlers.oidc", "ERROR", "Could not fetch userinfo")
            + traced(
                "synapse/http/client.py",
                "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            ),
            "answer userinfo as plain JSON",
            "not known",
        ),
        (
            logged("handlers.oidc", "ERROR", "Invalid id_token")
            + traced("synapse/handlers/oidc.py", "ValueError: Invalid JSON Web Key Set"),
            "look what is at jwks_uri",
            "not known",
        ),
        (
            logged(
                "http.client",
                "INFO",
                "Error sending request to  GET https://0.0.0.0/realms/master/certs: ConnectionRefusedError",
            ),
            "does not know its own public name",
            "not known",
        ),
        # Bridges (mautrix/telegram#979, #528, mautrix/signal#596), and the page of a proxy
        # (matrix-org/matrix-appservice-discord#864)
        (
            (
                "[2024-11-29 02:54:15,447] [WARNING@mau.as.api.bot] Request #3 failed with HTTP 502, retrying"
                " in 4 seconds"
            ),
            "Synapse does not reach the bridge at the url of its registration",
            "not known",
        ),
        (
            (
                "mautrix-telegram    | [2020-10-13 12:35:46,009] [ERROR@mau.mx] Connection to homeserver"
                " failed, retrying in 10 seconds"
            ),
            "set homeserver: address in the bridge's configuration",
            "not known",
        ),
        (
            logged(
                "http.server",
                "INFO",
                "<XForwardedForRequest at 0x7c method='POST' uri='/_matrix/client/v3/keys/upload'"
                " clientproto='HTTP/1.1' site='8008'> SynapseError: 400 - To upload keys, you must pass"
                " device_id when authenticating",
            ),
            "msc3202_device_masquerading",
            "not known",
        ),
        (
            "    '<head><title>502 Bad Gateway</title></head>\\r\\n' +",
            "the error log of the proxy",
            "not known",
        ),
        # What is not Synapse's own: a module, the authentication service, Sygnal, a playbook
        # (devture/matrix-synapse-shared-secret-auth#11, element-hq/matrix-authentication-service#3354,
        # matrix-org/sygnal#337, spantaleev/matrix-docker-ansible-deploy#5338)
        (
            (
                "2021-12-04 13:29:07 - shared_secret_authenticator - 54 - INFO - POST-2028 - Bad hmac value"
                " for user: @me:a.example"
            ),
            "goes on in the ordinary way",
            "not known",
        ),
        (
            "    request failed with status 404 Not Found: M_NOT_FOUND: Unknown user",
            "the user is not made in Synapse yet",
            "not known",
        ),
        (
            "sygnal.gcmpushkin [604c] Reg ID '<id>' has temporarily failed with code 'X: a'",
            "Synapse is not at fault",
            "not known",
        ),
        (
            "TASK [custom/matrix-synapse : Check Matrix Federation API] ****",
            "see that port 8448 is open",
            "not known",
        ),
        # Joins and logins (element-hq/synapse#19520, kamax-matrix/mxisd#174, matrix-org/complement#110)
        (
            "MatrixError: [403] Event $eM has duplicate auth_events for ('m.room.member', '@a:b.example')",
            "invite anew",
            "not known",
        ),
        (
            logged("handlers.auth", "WARNING", "Attempted to login as @8:a.example but they do not exist"),
            "names here are in lower case",
            "wrong password",
        ),
        # What others answer, and what the proxy answers (matrix-org/synapse#5822,
        # spantaleev/matrix-docker-ansible-deploy#706)
        (
            logged(
                "http.matrixfederationclient",
                "WARNING",
                "{GET-O-4} [a.example] Request failed: GET matrix://a.example/_matrix/federation/v1/query/"
                "profile?user_id=x: HttpResponseException(\"401: b'Unauthorized'\",)",
            ),
            "they cannot fetch this server's keys",
            "not known",
        ),
        (
            (
                '176.126.240.158 - - [04/Nov/2020:00:28:13 +0000] "GET /_matrix/federation/v1/query/profile'
                ' HTTP/1.1" 404 167 "-" "Synapse/1.22.1" "-"'
            ),
            "the proxy answered",
            "not known",
        ),
        # Another database than was meant (matrix-org/synapse#15296), coturn (matrix-org/synapse#6201), synadm
        # (JOJ0/synadm#75), a host with one kind of address alone (matrix-org/synapse#12287)
        (
            logged("storage.prepare_database", "INFO", "('main', 'state'): Initialising new database"),
            "it is another database or file than was meant",
            "not known",
        ),
        (
            (
                "Oct 12 08:26:50 turnserver: 56: session 000000000000000008: realm <my.domain> user <>:"
                " incoming packet message processed, error 401: Unauthorized"
            ),
            "That is how it works",
            "not known",
        ),
        ("WARNING Synapse returned status code 401", "its access token is not valid", "not known"),
        (
            logged(
                "http.federation.matrix_federation_agent",
                "INFO",
                "Failed to connect to a.example:8448: No route to host: 101: Network is unreachable.",
            ),
            "a host with IPv6 alone",
            "not known",
        ),
        # The library Twisted (element-hq/synapse#18368), retention (matrix-org/synapse#6773)
        (
            logged("x", "CRITICAL", "while interacting with body decoder:")
            + traced(
                "synapse/http/client.py",
                "AttributeError: 'TransportProxyProducer' object has no attribute 'abortConnection'",
            ),
            "is larger than Synapse takes",
            "install Synapse with its packages again",
        ),
        (
            logged("handlers.pagination", "INFO", "[purge] Attempting to purge messages in room !a:b"),
            "must lie within the bounds of one of purge_jobs",
            "failed",
        ),
        # A web server, the proxy of sliding sync, and Dendrite (matrix-docker-ansible-deploy#1815,
        # matrix-org/sliding-sync#319, matrix-org/dendrite#2148)
        (
            (
                '2022/05/13 07:32:22 [error] 23#23: *7 open() "/usr/share/nginx/html/_matrix/client/versions"'
                " failed (2: No such file or directory), client: 172.18.0.2, server: localhost"
            ),
            "has no location that passes this path on",
            "not known",
        ),
        (
            '16:33:02 WRN Poller: sync v2 poll returned temporary error error="DoSyncV2: response 502"',
            "that proxy is not needed",
            "not known",
        ),
        (
            'level=warning msg="Signature validation failed for event $Y2YWwBkfsU4HI2L6fQxCdi3GxOCoyEGi"',
            "The homeserver Dendrite",
            "nothing failed",
        ),
        # Another program than Synapse (YunoHost-Apps/synapse_ynh#213)
        (
            (
                "Sep 20 19:30:17 systemd[1]: coturn-synapse.service: Control process exited, code=killed,"
                " status=11/SEGV"
            ),
            "The server for calls, coturn, and not Synapse",
            "nothing failed",
        ),
        # Why an application service is not reached (element-hq/synapse#18754)
        (
            logged(
                "appservice.api",
                "WARNING",
                "push_bulk to http://[fd00::1]:9898 threw exception(InvalidCodepoint) Codepoint U+003A at"
                " position 5 of 'fd00::1' not allowed args=()",
            ),
            "a name in its place that resolves to the same address",
            "not known",
        ),
        # An exception alone (element-hq/synapse#19618, #16996)
        (
            "UnboundLocalError: cannot access local variable 'now_token' where it is not associated",
            "turn msc4354_enabled off",
            "not known",
        ),
        (
            "Dec 10 12:00:00 host synapse[12]: ValueError: 2130706432 is not a valid 128-bit integer!",
            "without the traceback that tells where",
            "not known",
        ),
        ("ImportError: lxml.html.clean is a project of its own", "could not be loaded", "not known"),
        # A follower that is ahead (matrix-org/synapse#8446)
        (
            logged(
                "metrics.background_process_metrics",
                "ERROR",
                "Background process 'user_directory.notify_new_event' threw an exception",
            )
            + "Traceback (most recent call last):\n"
            '  File "/usr/lib/python3/synapse/storage/databases/main/state_deltas.py", line 54\n'
            "    assert prev_stream_id <= max_stream_id\nAssertionError\n",
            "UPDATE user_directory_stream_pos SET stream_id",
            "not known",
        ),
        # A traceback that was cut off in another file than that of the fault (matrix-org/synapse#11833)
        (
            logged(
                "metrics.background_process_metrics",
                "ERROR",
                "Background process '_handle_old_staged_events' threw an exception",
            )
            + "Traceback (most recent call last):\n"
            '  File "/a/synapse/federation/federation_server.py", line 170, in _handle_old_staged_events\n'
            "    room_version = await self.store.get_room_version(room_id)\n"
            '  File "/a/synapse/storage/databases/main/state.py", line 65, in get_room_version\n'
            "    return await self.db_pool.runInteraction(\n",
            "If the line that is missing has Could not find room_version",
            "it failed, or its connection did",
        ),
        # Whom this server does not ask (matrix-org/synapse#6635, #4856)
        (
            logged(
                "crypto.keyring",
                "ERROR",
                "Unable to get key from 'matrix.org': FederationDeniedError 403: Federation denied with"
                " matrix.org.",
            ),
            "set trusted_key_servers: []",
            "PostgreSQL",
        ),
        # SQLite is no PostgreSQL
        (
            traced("synapse/storage/database.py", "sqlite3.OperationalError: too many SQL variables"),
            "SQLite did not do what was asked",
            "PostgreSQL",
        ),
        # An empty list of registrations (YunoHost-Apps/synapse_ynh#385)
        (
            "juin 05 20:05:20 python[82784]:   Expected 'None' to be a list of AS config files:",
            "take app_service_config_files out",
            "not known",
        ),
        # Files that users sent (matrix-org/synapse#12023, #13009, matrix-org/synapse-s3-storage-provider#162)
        (
            traced(
                "synapse/storage/databases/main/media_repository.py",
                "psycopg2.errors.NumericValueOutOfRange: integer out of range",
            ),
            "set max_upload_size to 2047M or less",
            "in synapse_port_db",
        ),
        (
            traced("synapse/media/media_storage.py", "ValueError: read of closed file"),
            "ended the connection before the file was copied",
            "not the form",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/m/local_content/Rf/sD/PJHtzaNc'",
            "enable_local_media_storage: false",
            "for a socket",
        ),
        # An identity provider at a start (NixOS/nixpkgs#256762, matrix-org/synapse#16004)
        (
            logged(
                "http.client",
                "INFO",
                "Error sending request to  GET https://idm.example/.well-known/openid-configuration:"
                " ConnectError No route to host",
            ),
            "have Synapse start after the network and the provider",
            "not known",
        ),
        (
            logged(
                "http.client",
                "INFO",
                "Error sending request to  GET https://idm.example/.well-known/openid-configuration:"
                " RequestTimedOutError 504: Timeout waiting for response from remote server",
            ),
            "if the certificate of the other side was not accepted",
            "not known",
        ),
        # Mails (matrix-org/synapse#8145, #11839)
        (logged("push.mailer", "INFO", "Sending email to ada@example.org"), "smtp_host", "not known"),
        (
            logged("handlers.send_email", "INFO", "Sending email to ada@example.org"),
            "smtp_host",
            "not known",
        ),
        (
            "2020-07-31 15:02:14,668 - twisted - 192 - INFO -  - SMTP Client retrying server. Retry: 5",
            "up to five times in all, and then the mail is not sent",
            "not known",
        ),
        (
            traced(
                "synapse/handlers/send_email.py",
                "internet.error.ConnectError: An error occurred while connecting: 22: Invalid argument",
            ),
            "write a name in its place",
            "not known",
        ),
        (
            traced(
                "synapse/handlers/send_email.py",
                "TypeError: __init__() got an unexpected keyword argument 'hostname'",
            ),
            "Twisted is older than 21.2",
            "as after an update of one package alone",
        ),
        # A unix socket (element-hq/synapse#16742)
        (
            traced("synapse/rest/x.py", "AttributeError: 'UNIXAddress' object has no attribute 'host'"),
            "X-Forwarded-For",
            "do not fit each other",
        ),
        # What calls itself (matrix-org/synapse#14480)
        (
            traced(
                "synapse/util/ratelimitutils.py",
                "RecursionError: maximum recursion depth exceeded while calling a Python object",
            ),
            "update to 1.76 or later",
            "a broken module",
        ),
        (
            traced("synapse/visibility.py", "RecursionError: maximum recursion depth exceeded"),
            "called itself",
            "update to",
        ),
        # Faults of releases (matrix-org/synapse#7683, #15136, element-hq/synapse#18351)
        (
            traced("synapse/handlers/auth.py", "TypeError: 'coroutine' object is not iterable"),
            "update to 1.15.1",
            "not known",
        ),
        (
            logged("replication.tcp.client", "WARNING", "Timed out waiting for stream backfill"),
            "update to 1.78",
            "not known",
        ),
        (
            logged(
                "metrics.background_process_metrics",
                "ERROR",
                "Background process 'delayed_events.notify_new_event' threw an exception",
            )
            + traced("synapse/handlers/delayed_events.py", "NotFoundError: 404: Could not find event $a"),
            "does not get past an event that was rejected",
            "not known",
        ),
        # What others send, and what users search for (matrix-org/synapse#9065, #14815, #8220)
        (
            logged("federation.sender.x", "ERROR", "TX [a.example] Failed to send transaction")
            + traced(
                "synapse/federation/sender/transaction_manager.py",
                "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            ),
            "update to 1.26 or later",
            "was not sent",
        ),
        (
            traced(
                "synapse/storage/databases/main/user_directory.py",
                'psycopg2.errors.SyntaxError: syntax error in tsquery: "(ay:matrix:* | ay:matrix)"',
            ),
            "search without the colon",
            "the words after the name of the error tell why",
        ),
        (
            traced(
                "synapse/handlers/user_directory.py",
                'psycopg2.errors.InvalidTextRepresentation: malformed array literal: ""',
            ),
            "update to 1.20 or later",
            "not known",
        ),
        # A request for another server (element-hq/synapse#17822)
        (
            logged(
                "http.server",
                "INFO",
                "<XForwardedForRequest at 0x7ffefbcc49d0 method='PUT' uri='/_matrix/federation/v1/send/1'"
                " clientproto='HTTP/1.1' site='8'> SynapseError: 401 - Destination mismatch in auth header",
            ),
            "compare server_name with what .well-known/matrix/server",
            "a matter of who asked",
        ),
        # Names (matrix-org/synapse#9831, #6589)
        (
            logged("http.client", "INFO", "Blocked 127.0.0.1 from DNS resolution to matrix.example.com"),
            "an address that Synapse does not go to",
            "not known",
        ),
        (
            logged(
                "http.matrixfederationclient",
                "WARNING",
                "{PUT-O-5} [terminus.example] Request failed: PUT matrix://terminus.example/_matrix/x:"
                " DNSServerError(<Message id=31345 rCode=2 maxSize=0>)",
            ),
            "dig SRV _matrix._tcp.NAME",
            "That is normal",
        ),
        # A request that the program itself ended (element-hq/synapse#20035)
        (
            logged(
                "http.client",
                "INFO",
                "Error sending request to  GET x: TypeError argument of type 'NoneType' is not iterable",
            ),
            "an error of the program, and not of the network",
            "is right and reached from here",
        ),
        # A lock that is held (element-hq/synapse#18379)
        (
            (
                "2025-05-01 11:19:13.402 CEST [130006] synapse@synapse ERROR:  duplicate key value violates"
                ' unique constraint "worker_read_write_locks_key"\n'
                "2025-05-01 11:19:13.402 CEST [130006] synapse@synapse DETAIL:  Key (lock_name, lock_key,"
                " write_lock)=(purge_pagination_lock, !r:example.org, t) conflicts with existing key"
                " (lock_name, lock_key, write_lock)=(purge_pagination_lock, !r:example.org, f).\n"
            ),
            "one of Synapse's own locks",
            "at the same moment",
        ),
        # The library of PostgreSQL's client (matrix-org/synapse#6244, #5653)
        (
            "ImportError: /opt/venv/psycopg2/_psycopg.so: undefined symbol: PQencryptPasswordConn",
            "ldd on the file in the line",
            "does not fit a library",
        ),
        (
            "ImportError: libpq.so.5: cannot open shared object file: No such file or directory",
            "libpq5",
            "does not fit a library",
        ),
    ],
)
def test_what_a_line_says_is_told(text: str, words: str, never: str) -> None:
    found = explain(text).passages

    assert words in said(found[0])
    assert all(never not in said(one) for one in found)


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: Cannot read properties of undefined (reading 'x')",
        "Error: something",
        "assertionError: x",
        "NoSuchThingError: x",
    ],
)
def test_what_is_no_exception_of_python_is_not_told(line: str) -> None:
    assert explain(line).passages == []


REFUSED = (
    "<XForwardedForRequest at 0x7fb07b58ad68 method='GET' uri='/_matrix/client/r0/sync' site=8108>"
    " SynapseError: 404 - Could not find event $3AJgBnxl5BLJs3Sp0L3GWojCeItDi98uVpmuqWH"
)
ANSWERED = (
    "10.0.0.1 - 8108 - {@ada:example.org} Processed request: 3.9sec/0.0sec (2.0sec, 0.6sec)"
    ' (0.2sec/1.5sec/2) 101B 404 "GET /_matrix/client/r0/sync HTTP/1.1" "Riot" [1 dbevts]'
)


@pytest.mark.parametrize(
    ("request_of_the_answer", "severity"), [("GET-7", "normal"), ("GET-8", "look")], ids=["same", "other"]
)
def test_an_answer_has_the_reason_of_its_refusal(request_of_the_answer: str, severity: str) -> None:
    """As matrix-org/synapse#7065 has it: no listener lacks a path there."""
    text = logged("http.server", "INFO", REFUSED) + logged("access.http.8108", "INFO", ANSWERED).replace(
        "GET-7", request_of_the_answer
    )
    [answer] = [one for one in explain(text).passages if one.kind == "request"]

    assert answer.severity == severity
    assert ("listener" in said(answer)) == (severity == "look")


@pytest.mark.parametrize("name", [name for name in TASKS if not name.endswith("-")])
def test_each_task_in_the_background_is_told_by_its_name(name: str) -> None:
    line = f"Background process '{name}-1' threw an exception"
    [passage] = explain(logged("metrics.background_process_metrics", "ERROR", line)).passages

    assert TASKS[name].missing in said(passage)


def failed(*names: str, why: str = "TimeoutError('')") -> str:
    return "".join(
        logged("http.matrixfederationclient", "INFO", f"{{GET-O-1}} [{name}] Request failed: GET x: {why}")
        for name in names
    )


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (failed("a.example", "b.example", "c.example", "d.example"), True),
        (failed("a.example", "b.example", "c.example"), False),
        (
            failed("a.example", "b.example", "c.example") + failed("d.example", why="DNSLookupError('')"),
            False,
        ),
        (failed("a.example", "a.example", "b.example"), False),
        (failed("a.example", "matrix.org"), True),
        (failed(*"abcd", why="HttpResponseException('404: Not Found')"), False),
        (
            failed(*"abcd")
            + logged(
                "http.matrixfederationclient", "INFO", "{GET-O-2} [d.example] Completed request: 200 OK"
            ),
            False,
        ),
    ],
)
def test_that_no_homeserver_at_all_is_reached_is_not_their_matter(text: str, *, is_told: bool) -> None:
    found = explain(text)

    assert is_told == ("no_way_out" in [one.kind for one in found.passages])
    assert is_told == found.summary.startswith("None of the ")


def test_the_package_of_another_author_is_named() -> None:
    """As matrix-org/synapse#11153 has it, where the storage for media did not fit the release."""
    why = "AttributeError: 'HomeServerConfig' object has no attribute 'media_store_path'"
    for package, is_told in (("s3_storage_provider.py", True), ("twisted/web/http.py", False)):
        text = traced(f'synapse/rest.py", line 1\n    x\n  File "/a/site-packages/{package}', why)
        [passage] = explain(text).passages

        assert is_told == ("update s3_storage_provider" in said(passage))


def test_what_is_worth_a_look_beside_the_streams_is_not_the_summary() -> None:
    found = explain(
        logged("media.url_previewer", "WARNING", "Failed to find any OG data in https://x.example")
        + logged("replication.tcp.handler", "WARNING", "Dropping command as not connected: 'USER_IP'")
    )

    assert found.summary.startswith("This process is not connected to Redis")


def test_a_traceback_below_a_line_that_is_normal_is_told() -> None:
    text = logged("replication.tcp.handler", "INFO", "Caught up with stream 'events' to 5")
    found = explain(text + traced("synapse/handlers/sync.py", "AssertionError"))

    assert ["traceback", "caught_up"] == [one.kind for one in found.passages]


def test_each_message_has_a_key_of_its_own() -> None:
    keys = [one.key for one in known_messages()]

    assert len(set(keys)) == len(keys)


def test_each_fault_of_what_failed_has_a_cure() -> None:
    """A release, or steps; nothing is to be done only for what is harmless."""
    assert [one.source for one in known_faults() if not one.steps and one.severity in ("", "error")] == []


NEWER = (
    "Expected database schema version 64 but got 65: run the main synapse process to upgrade the database"
    " schema before starting worker processes."
)


def test_a_schema_that_is_newer_is_not_mended_by_the_main_process() -> None:
    """A release that was set back (matrix-org/synapse#11252)."""
    text = said(explain(NEWER).passages[0])

    assert "no main process sets a schema back" in text
    assert "start all processes with the newer release again" in text
    assert "Nothing is damaged" in text


STARTING = (
    logged("storage.prepare_database", "INFO", "['main', 'state']: Existing schema is 63 (+3 deltas)")
    + logged("storage.prepare_database", "INFO", "Checking schema deltas for v63")
    + logged("app._base", "ERROR", "Exception during startup")
    + "Traceback (most recent call last):\n"
    '  File "/x/synapse/app/{}.py", line 480, in start\n    hs.setup()\n'
    '  File "/x/synapse/server.py", line 310, in setup\n'
)


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("generic_worker", "start the main process of the new release first"),
        ("federation_sender", "start the main process of the new release first"),
        ("homeserver", "a step of the upgrade failed"),
        ("_base", "If it is a worker"),
    ],
)
def test_a_start_that_ends_at_the_schema_is_told(app: str, words: str) -> None:
    """The exception is cut off, and main makes the steps of the schema (matrix-org/synapse#10793)."""
    found = explain(STARTING.format(app))

    assert words in said(found.passages[0])
    assert ("It is a worker" in found.summary) == (app not in ("homeserver", "_base"))


def test_a_start_that_ends_elsewhere_is_not_of_the_schema() -> None:
    other = STARTING.format("generic_worker").replace("Checking schema deltas for v63", "Setting up server")
    other = other.replace("Existing schema is 63 (+3 deltas)", "Checking existing schema version")

    assert "looked at the schema" not in said(explain(other).passages[0])


@pytest.mark.parametrize(
    "line",
    [
        logged("storage.txn", "WARNING", "[TXN OPERROR] {x-1} server closed the connection unexpectedly 0/5"),
        logged("app", "CRITICAL", "Rollback failed").replace("synapse.app", "twisted"),
        logged("app", "CRITICAL", "Rollback failed").replace("synapse.app", "twisted")
        + traced("synapse/storage/database.py", "    conn.rollback()"),
    ],
)
def test_releases_that_keep_a_dead_connection_are_named(line: str) -> None:
    """Known of 1.21 to 1.23 (matrix-org/synapse#8574)."""
    text = said(explain(line).passages[0])

    assert "cp_reconnect: true" in text
    assert "1.24" in text


def test_a_password_of_redis_that_nobody_set_may_be_a_strangers() -> None:
    text = said(explain("NOAUTH Authentication required.").passages[0])

    assert "CONFIG SET requirepass" in text
    assert "do not give that password to Synapse" in text
    assert "Close the port" in text


def test_a_directory_without_a_position_is_a_known_fault() -> None:
    """Of 1.27 (matrix-org/synapse#9420)."""
    trace = traced(
        "synapse/storage/databases/main/state_deltas.py",
        "TypeError: int() argument must be a string, a bytes-like object or a number, not 'NoneType'",
    )
    head = logged(
        "metrics.background_process_metrics",
        "ERROR",
        "Background process 'user_directory.notify_new_event' threw an exception",
    )
    text = said(explain(head + trace).passages[0])

    assert "mended in 1.28" in text
    assert "nothing is damaged" in text
    assert "By its kind" not in text
    assert "background updates" in text


def test_a_metric_that_a_development_version_lacks_is_known() -> None:
    """Replication itself is well (matrix-org/synapse#7189)."""
    trace = traced(
        "synapse/replication/tcp/resource.py",
        "AttributeError: 'ServerReplicationStreamProtocol' object has no attribute 'replication_streams'",
    )
    trace = trace.replace("\n", '\n  File "/x/synapse/metrics/__init__.py", line 74, in collect\n', 1)
    found = explain(logged("metrics", "ERROR", "Exception running callback for LaterGauge(x)") + trace)
    text = said(found.passages[0])

    assert "replication goes on" in text
    assert "they are not told" not in text
    assert "run a release" in text
    assert "pip check" not in text
    assert found.passages[0].severity == "look"
