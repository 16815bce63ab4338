"""The texts of exceptions that Synapse itself raises: what happened, and what to do about it."""

from typing import Final

import pytest

from synrepl.homeserver.explanation import explain

CONFIGURATION: Final = [
    (
        "cfg_media_resource",
        "'media' resource conflicts with enable_media_repo=False",
        "take media out of names",
    ),
    ("cfg_listener_resource", "Unknown listener resource", "replication and static are known"),
    ("cfg_listener_place", "Listener configuration is lacking a valid 'port' option", "a port (a number)"),
    ("cfg_form_secret", "form_secret not set in config", "set form_secret"),
    (
        "cfg_delegated",
        "Registration cannot be enabled when OAuth delegation is enabled",
        "take that option out",
    ),
    (
        "cfg_msc3861",
        "experimental_features.msc3861 was removed. Use the matrix_authentication_service configuration",
        "endpoint and secret",
    ),
    (
        "cfg_tls_files",
        "tls_private_key_path must be specified if TLS-enabled listeners are configured.",
        "tls: false",
    ),
    ("cfg_mail", "email.enable_notifs is True but required keys are missing: email.notif_from", "notif_from"),
    ("cfg_as_twice", "Cannot reuse ID across application services: irc (files: /a.yaml, /b.yaml)", "once"),
    ("cfg_no_database", "No database config provided", "must be given that file too"),
    ("db_engine", "Unsupported database type postgres", "name: psycopg2"),
    ("cfg_no_key", "No signing keys in file /data/hs.signing.key", "--generate-keys"),
    ("cfg_key_servers", "Unable to parse 'trusted_key_servers': x", "server_name"),
    ("cfg_templates", "Configured template directory does not exist: /templates", "mount the folder"),
    (
        "cfg_room_version",
        "Unknown default_room_version: 14, known room versions: ['1', '2']",
        "newer release",
    ),
    ("cfg_module", "Failed to parse config for module 'a.B'", "traceback"),
    ("cfg_oidc_secret", "Multiple OIDC providers have the idp_id 'oidc'.", "idp_id of its own"),
    # matrix-org/synapse#8778
    (
        "cfg_mapping_methods",
        "Class specified by saml2_config.user_mapping_provider.module is missing required methods: get_x",
        "update that module",
    ),
    ("cfg_consent", "user_consent configuration requires server notices, but server notices", "system_mxid"),
]
"""What Synapse prints below Error in configuration, and some of what is to be done."""


@pytest.mark.parametrize(("key", "text", "step"), CONFIGURATION)
def test_an_error_of_the_configuration_is_told_with_its_cure(key: str, text: str, step: str) -> None:
    for before in ("Error in configuration:", "Error in configuration at 'a.b':"):
        [found] = explain(f"{before}\n  {text}\n").passages
        assert (found.kind, found.severity) == (key, "error")
        assert step in " ".join(found.advice)
        assert text[:30] in found.text


def test_an_error_of_the_configuration_that_is_not_known_is_told_as_it_is() -> None:
    found = explain("Error in configuration:\n  caches.global_factor must be a number.\n")

    assert found.summary == (
        "Synapse refuses to start: its configuration is wrong: caches.global_factor must be a number"
    )


EXCEPTIONS: Final = [
    ("oidc_metadata", 'ValueError: Missing "jwks_uri" in metadata', ".well-known/openid-configuration"),
    ("oidc_metadata", 'ValueError: "S256" not in "code_challenge_methods_supported" ([])', "pkce_method"),
    ("oidc_start", "Exception: Error while initialising OIDC provider 'oidc-a'", "discover: false"),
    (
        "sso_mapping",
        "synapse.handlers.sso.MappingException: Could not extract user attributes from SSO response: x",
        "localpart_template",
    ),
    ("oidc_jwk", "ValueError: Invalid JWK kid", "jwks_uri"),
    ("not_writer", "Exception: Not a push writer", "stream_writers"),
    ("not_writer", "Exception: Can only be called on device list writers", "stream_writers"),
    ("wrong_role", "Exception: Func can only be used on federation senders", "federation_sender_instances"),
    ("module_on_worker", "RuntimeError: module tried to change push rule actions on a worker", "module"),
    (
        "task_no_action",
        "Exception: No function associated with action delete_old_otks of the scheduled task ab12",
        "same release in all processes",
    ),
    ("updates_given_up", "RuntimeError: 5 back-to-back background update failures; aborting.", "restart"),
    (
        "updates_in_circle",
        "Exception: Unable to find a background update which doesn't depend on another: dependency cycle?",
        "depends_on",
    ),
    (
        "fed_answer_bad",
        "synapse.federation.federation_client.InvalidResponseError: No create event in state",
        "nothing is to be done here",
    ),
    ("room_state_foreign", "Exception: In state res for room !a:x, event $b is in !c:x", "join it again"),
    ("state_group_gone", "Exception: State groups have been deleted: [1, 2]", "rust-synapse-compress-state"),
    ("event_state_missing", "Exception: Missing state for non-outlier event", "join it again"),
    (
        "fed_history",
        "FederationError: ERROR: 403: We can't get valid state history.",
        "nothing is to be done",
    ),
    ("key_answer", "KeyLookupError: Key response for a.x is not signed by the origin server", "verify_keys"),
    ("proxy_of_ours", "ProxyConnectError: Unexpected status on CONNECT: b'403'", "no_proxy"),
    ("not_permitted", "AuthError: 403: You don't have permission to invite users", "m.room.power_levels"),
    (
        "schema_base",
        "PrepareDatabaseException: Could not find a suitable base set of full schemas",
        "install Synapse again",
    ),
    ("builds_in_circle", "ValueError: Cyclic dependency while building sync_handler", "module"),
    ("mail_token", "ThreepidValidationError: Validation token not found or has expired", "public_baseurl"),
    ("mau_full", "ResourceLimitError: 403: Monthly Active User Limit Exceeded", "max_mau_value"),
    (
        "db_engine",
        "RuntimeError: Cannot create PostgresEngine -- psycopg2 module is not installed",
        "[postgres]",
    ),
    ("cfg_no_instances", "Exception: Got empty list of instances for shard config", "name the workers"),
    ("as_registration", "KeyError: \"Required string field: 'hs_token' (/irc.yaml)\"", "sender_localpart"),
    # element-hq/synapse#17019
    ("room_still_joined", "SynapseError: 400: Users are still joined to this room", "force_purge"),
    # element-hq/synapse#19724, matrix-org/synapse#3828, #15858
    ("pyopenssl_old", "AttributeError: module 'lib' has no attribute 'X509_V_FLAG_NOTIFY_POLICY'", "pysaml2"),
    ("pyopenssl_old", "AttributeError: 'module' object has no attribute 'OP_SINGLE_ECDH_USE'", "pyOpenSSL"),
    (
        "pydantic_other",
        "pydantic.errors.PydanticUserError: `const` is removed, use `Literal` instead",
        "pydantic<2",
    ),
    # matrix-org/synapse-s3-storage-provider#124
    (
        "s3_refused",
        (
            "botocore.exceptions.ClientError: An error occurred (XAmzContentSHA256Mismatch) when calling the"
            " PutObject operation: x"
        ),
        "AWS_REQUEST_CHECKSUM_CALCULATION=when_required",
    ),
    (
        "port_not_empty",
        "Exception: Attempt to set room_is_public during port_db: database not empty?",
        "SQLite's file is not changed",
    ),
]
"""Last lines of tracebacks, and some of what is to be done."""


@pytest.mark.parametrize(("key", "line", "step"), EXCEPTIONS)
def test_an_exception_of_synapse_is_told_with_its_cure(key: str, line: str, step: str) -> None:
    traceback = (
        f'Traceback (most recent call last):\n  File "/x/synapse/server.py", line 3, in f\n    a()\n{line}\n'
    )
    for text in (line, traceback):
        [found] = explain(text).passages
        assert found.kind == key
        assert step in " ".join(found.advice)


LINES: Final = [
    # matrix-org/synapse#7530, #9427
    (
        "sso_session_gone",
        "synapse.handlers.saml_handler",
        "SAML2 response was not solicited",
        "to one and the same process",
    ),
    (
        "sso_session_gone",
        "synapse.rest.synapse.client.pick_username",
        "Error fetching session: 404: Unknown session",
        "/_synapse/client/pick_username",
    ),
    (
        "s3_credentials",
        "",
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        "access_key_id",
    ),
    ("pydantic_warning", "", "UserWarning: Valid config keys have changed in V2:", "pydantic<2"),
    ("room_create_missing", "", "KeyError: ('m.room.create', '')", "force_purge"),
    (
        "join_under_way",
        "",
        "AssertionError: assert room_id not in self._federation_event_handler.room_queues",
        "restart this process",
    ),
    (
        "module_callback",
        "synapse.module_api.callbacks.third_party_event_rules_callbacks",
        "Failed to run module API callback <bound method X.y>: x",
        "Update the module",
    ),
    (
        "module_answer",
        "synapse.module_api.callbacks.spamchecker_callbacks",
        "Module returned invalid value, rejecting join as spam",
        "NOT_SPAM",
    ),
    (
        "mail_off",
        "synapse.rest.client.account",
        "Adding emails have been disabled due to lack of an email config",
        "smtp_host",
    ),
    (
        "fed_state_missing",
        "synapse.handlers.federation_event",
        "Error attempting to resolve state at missing prev_events: 403: Forbidden",
        "nothing is to be done",
    ),
    ("oidc_logout", "synapse.handlers.oidc", "Invalid logout_token", "backchannel_logout_enabled"),
    (
        "auto_join",
        "synapse.handlers.register",
        "Failed to join new user to '#a:hs.test': x",
        "auto_join_mxid_localpart",
    ),
    (
        "as_txn_lost",
        "synapse.storage.databases.main.appservice",
        "appservice: Completing a transaction which has an ID > 1 from the last ID sent to this AS. We've",
        "service's log",
    ),
]
"""Lines of loggers (or last lines of tracebacks), and some of what is to be done."""


@pytest.mark.parametrize(("key", "logger", "text", "step"), LINES)
def test_a_line_beside_streams_is_told_with_its_cure(key: str, logger: str, text: str, step: str) -> None:
    line = f"2026-11-02 10:00:00,000 - {logger} - 7 - WARNING - main - {text}" if logger else text
    [found] = explain(line).passages

    assert found.kind == key
    assert step in " ".join(found.advice)


LOGGED: Final = "2026-11-02 10:00:00,000 - synapse.metrics.background_process_metrics - 203 - ERROR - x - "
FRAME: Final = 'Traceback (most recent call last):\n  File "/x/{}", line 3, in f\n    a()\n{}\n'
FAULTS: Final = [
    (
        "synapse/handlers/federation.py",
        "UnboundLocalError: local variable 'destinations' referenced before assignment",
        "update to 1.65 or later",
    ),
    ("synapse/push/mailer.py", "ImportError: cannot import name 'Markup' from 'jinja2' (/x)", "jinja2<3.1"),
    ("synapse/crypto/context_factory.py", "ImportError: cannot import name _OpenSSLECCurve", "Twisted<18.4"),
    (
        "synapse/handlers/register.py",
        "AttributeError: 'RegistrationHandler' object has no attribute 'pusher_pool'",
        "sso_register",
    ),
    (
        "synapse/app/_base.py",
        "TypeError: cannot unpack non-iterable NoneType object",
        "--upgrade prometheus_client",
    ),
    (
        "synapse/storage/events_worker.py",
        "NotFoundError: 404: Could not find event None",
        "update to 1.3 or later",
    ),
    (
        "synapse/storage/databases/main/events_worker.py",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "convert_from(decode(substr(json, 3), 'hex'), 'UTF8')",
    ),
]


@pytest.mark.parametrize(("file", "exception", "step"), FAULTS)
def test_a_known_fault_is_told_by_its_exception_and_its_file(file: str, exception: str, step: str) -> None:
    text = FRAME.format(file, exception)
    for before in ("", LOGGED + "Background process 'x.notify_new_event' threw an exception\n"):
        [found] = explain(before + text).passages
        assert step in " ".join(found.advice)


def test_a_row_that_a_worker_cannot_take_is_no_request() -> None:
    """Nothing is to be sent elsewhere (matrix-org/synapse#4702)."""
    lacks = "AttributeError: 'MediaRepositorySlavedStore' object has no attribute 'get_x'"
    text = LOGGED + "Background process 'replication-RDATA-caches' threw an exception\n"
    [found] = explain(text + FRAME.format("synapse/replication/slave/storage/_base.py", lacks)).passages

    assert "proxy" not in str(found.advice)
    assert "restart this process" in " ".join(found.advice)


VERIFY: Final = (
    "OpenSSL.SSL.Error: [('SSL routines', 'tls_process_server_certificate', 'certificate verify failed')]"
)


@pytest.mark.parametrize(
    ("line", "said", "step"),
    [
        # matrix-org/synapse#10976, #10949, #7098
        (VERIFY, "its issuer is not in this system's list of authorities", "ca-certificates"),
        (
            "OpenSSL.SSL.Error: [('SSL routines', '', 'wrong version number')]",
            "one side speaks TLS",
            "use_tls",
        ),
        (
            "OpenSSL.SSL.Error: [('SSL routines', '', 'tlsv1 alert unknown ca')]",
            "the other side did not accept the certificate of this one",
            "fullchain.pem",
        ),
    ],
)
def test_a_failure_of_tls_is_told_by_its_kind(line: str, said: str, step: str) -> None:
    [found] = explain(line).passages

    assert found.kind == "tls"
    assert said in found.words[0]
    assert step in " ".join(found.advice)


def test_a_certificate_that_no_homeserver_has_right_is_a_matter_of_the_own_list() -> None:
    """Of one it is that one's; of all, as of matrix.org, this system's list is old (10976)."""
    head = "2021-10-02 11:15:18,193 - synapse.http.matrixfederationclient - 635 - INFO - x - {GET-O-54} "
    [found] = explain(
        f"{head}[matrix.org] Request failed: GET matrix://matrix.org/_matrix/key/v2/server/a: "
        "ResponseNeverReceived:[Error([('SSL routines', 'x', 'certificate verify failed')])]"
    ).passages

    assert "update ca-certificates" in " ".join(found.advice)


def test_an_answer_of_http_to_replication_over_tcp_is_a_port_that_was_mistaken() -> None:
    """matrix-org/synapse#4966."""
    head = "2019-03-28 16:59:41,440 - synapse.replication.tcp.protocol - 233 - ERROR - - "
    [found] = explain(f"{head}[anon-GIpmE] failed to parse line: 'HTTP/1.1 400 Bad Request'").passages

    assert "worker_replication_http_port is the one for HTTP" in " ".join(found.advice)
