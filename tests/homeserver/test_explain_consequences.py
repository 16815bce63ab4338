"""What follows from a message, where it was once told otherwise than the source of the releases has it."""

from typing import Final, NamedTuple

import pytest

from synrepl.homeserver.explanation import explain
from synrepl.homeserver.explanation.faults import known_faults
from synrepl.homeserver.explanation.messages import known_messages

HEAD: Final = "2026-11-02 10:00:00,000 - {} - 1 - {} - x-1 - {}"


class Case(NamedTuple):
    """A line, and what is told of it: `said` and `not_said` have words, divided by ``|``."""

    logger: str
    level: str
    line: str
    kind: str
    severity: str
    said: str
    not_said: str


def case(place: str, line: str, told: str, said: str, not_said: str = "") -> Case:
    """Return the case of a line, by its place (``LOGGER LEVEL``, or nothing) and ``KIND SEVERITY``."""
    logger, _, level = place.partition(" ")
    kind, _, severity = told.partition(" ")
    return Case(logger, level, line, kind, severity, said, not_said)


POLICY: Final = "not reached|policy server"

CASES: Final = [
    # Users and their keys
    case(
        "synapse.handlers.deactivate_account ERROR",
        "Failed to remove threepid from ID server",
        "deactivate_stopped error",
        "was stopped|still active",
        "went on",
    ),
    case(
        "synapse.handlers.deactivate_account ERROR",
        "Failed to part user '@a:b' from room '!r:b': ignoring and continuing",
        "deactivate_failed look",
        "went on",
        "identity server",
    ),
    case(
        "synapse.handlers.e2e_keys ERROR",
        "Invalid master key found for user @me:hs.test",
        "keys_own_broken error",
        "of this homeserver|500",
        "another homeserver",
    ),
    case(
        "synapse.handlers.e2e_keys WARNING",
        "Got signing key update edu for '@a:b' from 'c.test'",
        "keys_of_others normal",
        "were ignored",
        "not verified",
    ),
    case("", "M_USER_DEACTIVATED", "user_deactivated look", "before 1.99 with a new password"),
    case(
        "synapse.push.emailpusher ERROR",
        "Exception processing notifs",
        "mail_push_failed error",
        "is kept",
        "not sent again",
    ),
    # Rooms and events
    case(
        "synapse.handlers.room ERROR",
        "Failed to leave old room and join new room for '@u:hs.test'",
        "room_kick_failed error",
        "being deleted|force_purge",
        "upgrade",
    ),
    case(
        "synapse.storage.databases.main.events WARNING",
        "No create event found for room !a:b",
        "room_no_create_row look",
        "redaction is not carried out",
        "it is not whole",
    ),
    case(
        "synapse.storage.databases.main.events_worker ERROR",
        "Unable to parse json from event: $abc",
        "event_json error",
        "left out",
        "fail",
    ),
    case(
        "synapse.storage.databases.main.events_worker ERROR",
        "Event $a in room !b:c with version 6 has wrong format: expected 3, was 1",
        "event_json error",
        "another format than",
    ),
    case(
        "",
        "Exception: Room !a:b for event $abc is unknown",
        "room_unknown error",
        "each request that needs it fails",
        "the event is left out, as if",
    ),
    case(
        "synapse.handlers.federation_event WARNING",
        "$abc still has prev_events with partial state: can't de-partial-state it yet",
        "state_resync_later normal",
        "comes again by itself",
        "not taken",
    ),
    case(
        "synapse.handlers.federation_event INFO",
        "Ignoring PDU from b.test as we're not in the room",
        "fed_event_not_here normal",
        "was dropped",
        "fetched",
    ),
    case(
        "synapse.handlers.federation_event INFO",
        "Not in the room, dropping pdu",
        "fed_event_not_here normal",
        "was dropped",
        "fetched",
    ),
    case(
        "synapse.federation.federation_server INFO",
        "Ignoring PDU for unknown room_id: !a:b",
        "fed_event_not_known normal",
        "was dropped",
        "looked through",
    ),
    case(
        "synapse.federation.federation_base WARNING",
        "Event not allowed by policy server, soft-failing $abc",
        "fed_policy_server look",
        POLICY,
        "This is normal",
    ),
    case(
        "synapse.federation.federation_base WARNING",
        "Event contains spam, soft-failing $abc",
        "fed_spam normal",
        "module",
        "policy server",
    ),
    case(
        "synapse.handlers.message WARNING",
        "Event not allowed by policy server, rejecting $abc",
        "event_denied_by_policy look",
        f"{POLICY}|403",
        "the rules of its room",
    ),
    case(
        "synapse.handlers.room_policy WARNING",
        "Failed to get a signature from the policy server: timeout",
        "policy_server look",
        "not allowed here|is refused",
        "other homeservers of that room",
    ),
    case(
        "synapse.handlers.message INFO",
        "Failed to send dummy event into room !a:b. Will exclude it from future attempts until cache expires",
        "dummy_event look",
        "many newest events",
    ),
    case(
        "synapse.handlers.message WARNING",
        "Failed to send dummy event into room !a:b after remote join; no local user with permission",
        "dummy_event_join look",
        "joined while events were sent",
        "many newest events",
    ),
    case(
        "synapse.handlers.message ERROR",
        "Could not expire event $a: DatabaseError('x')",
        "expiry_failed error",
        "again at once",
    ),
    # The database
    case(
        "",
        'WARNING:  database "a" must be vacuumed within 10000000 transactions',
        "db_wraparound error",
        "pg_prepared_xacts|as a superuser|neither FULL nor FREEZE",
        "as its owner",
    ),
    case(
        "",
        "Exception: Unable to find a background update which doesn't depend on another: dependency cycle?",
        "updates_in_circle error",
        "in a circle|lowest ordering",
        "is not in the table|is no row there",
    ),
    case(
        "",
        "RuntimeError: 5 back-to-back background update failures; aborting.",
        "updates_given_up error",
        "background_updates/enabled|since 1.47",
    ),
    case(
        "",
        "FATAL:  terminating connection due to unexpected postmaster exit",
        "pg_postmaster_gone error",
        "until it is started again",
        "mends its files and goes on",
    ),
    case(
        "",
        "ERROR:  could not send data to WAL stream: SSL error",
        "pg_standby_waits look",
        "lost each other",
        "This is normal",
    ),
    case(
        "",
        "WARNING:  you don't own a lock of type ExclusiveLock",
        "pg_lock_not_owned look",
        "does not hold",
        "NOWAIT",
    ),
    case(
        "",
        "canceling statement due to lock timeout",
        "lock_timeout look",
        "unnest(pg_blocking_pids(pid))",
        "= 0",
    ),
    case(
        "synapse.storage.txn WARNING",
        "[TXN OPERROR] {x-1} could not serialize access due to concurrent update 2/5",
        "txn_retry look",
        "with 5/5 is of the last try|1.150 and newer up to four times",
        "is repeated up to five times",
    ),
    # The start, and the configuration
    case(
        "root WARNING",
        "Loaded a blank logging config?",
        "cfg_log_blank error",
        "does not start",
        "or little",
    ),
    case(
        "synapse.config.logger WARNING",
        "Loaded a blank logging config?",
        "cfg_log_blank error",
        "does not start",
        "or little",
    ),
    case(
        "synapse.handlers.auth ERROR",
        "Error while initializing <class 'x'>: bad",
        "module_not_made error",
        "does not start",
        "at a login",
    ),
    case(
        "synapse.config.appservice WARNING",
        "Expected x.yaml to be a list of AS config files.",
        "cfg_as_list_ignored error",
        "without any application service",
        "Synapse refuses to start",
    ),
    case(
        "",
        "Expected 'x.yaml' to be a list of AS config files:",
        "cfg_as_list error",
        "refuses to start",
        "without any application service",
    ),
    case(
        "",
        "Exception: Got empty list of instances for shard config",
        "cfg_no_instances error",
        "stream_writers",
        "pusher_instances",
    ),
    case(
        "",
        "Listener configuration is lacking a valid 'path' option",
        "cfg_listener_place error",
        "since 1.81, for replication since 1.89",
    ),
    case(
        "synapse.rest WARNING",
        "media.can_load_media_repo needs to be configured for the media servlet to be available",
        "media_not_here error",
        "does not start",
        "asked for files",
    ),
    case(
        "synapse.util.caches.lrucache WARNING",
        "Unable to read allocated memory, skipping memory-based cache eviction.",
        "cache_memory look",
        "has jemalloc, but its figures",
        "without jemalloc",
    ),
    case(
        "synapse.app.homeserver WARNING",
        "Failed to set file or core limit: current limit exceeds maximum limit",
        "limit_failed look",
        "core dumps alone|soft_file_limit",
    ),
    case(
        "synapse.app.homeserver CRITICAL",
        "Unhanded exception",
        "daemon_failed error",
        "ended with an exception",
    ),
    case(
        "synapse.app.generic_worker CRITICAL",
        "Unhanded exception",
        "daemon_failed error",
        "ended with an exception",
    ),
    case(
        "synapse.app.homeserver WARNING",
        "Caught signal 15. Stopping daemon.",
        "daemon normal",
        "or ends",
    ),
    # Other homeservers, and media
    case(
        "synapse.http.federation.well_known_resolver INFO",
        "Error parsing well-known for b.test: bad",
        "well_known look",
        "SRV record",
    ),
    case(
        "",
        "twisted.names.error.DNSNameError: <Message id=1 rCode=3 maxSize=0>",
        "srv_none look",
        "8448",
        "does not go on",
    ),
    case(
        "synapse.media.storage_provider ERROR",
        "Error storing file",
        "media_store_failed error",
        "in the media store|not tried again",
    ),
    case(
        "synapse.crypto.keyring ERROR",
        "Unable to get key from 'notary.test': RequestSendFailed x",
        "key_lookup look",
        "trusted_key_servers|or the homeserver itself",
        "A key of another homeserver was not had: ",
    ),
    case(
        "synapse.federation.sender.per_destination_queue WARNING",
        "TX [b.test] Failed to send transaction: x",
        "fed_tx_failed look",
        "Since 1.21|before, they are not sent again",
        "tried again later",
    ),
    case(
        "synapse.federation.sender.per_destination_queue ERROR",
        "TX [b.test] Failed to send transaction",
        "fed_tx_failed error",
        "in this process, and not there|Since 1.21|before, those in it are not sent again",
        "tried again later",
    ),
    case(
        "synapse.federation.transaction_queue WARNING",
        "TX [b.test] Failed to send transaction: x",
        "fed_tx_failed_old look",
        "are not sent again",
        "tried again later",
    ),
    case(
        "synapse.federation.sender.per_destination_queue INFO",
        "Failed to send event $a to b.test",
        "fed_event_not_sent look",
        "Since 1.21|before, it is not sent again",
        "tried again later",
    ),
    case(
        "synapse.http.matrixfederationclient WARNING",
        "{GET-O-1} [b.test] Request failed: GET matrix-federation://b.test/x: x",
        "fed_request_failed look",
        "a question (a join, a profile, keys) has failed",
        "Federation tries again later",
    ),
    case(
        "synapse.federation.sender INFO",
        "Destination b.test has outstanding catch-up, waking up.",
        "fed_catch_up normal",
        "the last of up to 25",
    ),
    case(
        "synapse.http.client INFO",
        "Blocked 10.0.0.1 from DNS resolution to a.test",
        "address_blocked look",
        "no address at all",
        "no such address",
    ),
    # Devices
    case(
        "synapse.storage.databases.main.devices WARNING",
        "Given stream ID is too old 5 < 9",
        "device_token_old error",
        "restart this process|not taken in",
        "This is normal",
    ),
    case("", "Exception: stream ID is too old", "device_token_old error", "restart this process"),
    case(
        "synapse.storage.databases.main.devices INFO",
        "Pruned 12 device list outbound pokes",
        "device_pruned normal",
        "the newest of each user",
        "no homeserver waits for",
    ),
    case(
        "synapse.handlers.device WARNING",
        "Ignoring device list snapshot for @a:b as it has >1K devs (1234)",
        "device_list_large look",
        "single changes are taken in",
        "not taken in",
    ),
    case(
        "synapse.handlers.device DEBUG",
        "Could not resync the device list for @a:b: x",
        "device_resync_later normal",
        "again later",
        "no room is shared",
    ),
    case(
        "synapse.handlers.devicemessage INFO",
        "Received device message from remote device we don't share a room with: @a:b {'X'}",
        "to_device_of_stranger normal",
        "nothing is asked",
        "is asked for the devices",
    ),
    case(
        "synapse.8631_debug DEBUG",
        "example.test: no change between 5 and 6",
        "device_poked normal",
        "devices",
    ),
    case(
        "synapse.federation.sender.per_destination_queue INFO",
        "Marking as sent 'b.test' 17",
        "device_marked_sent normal",
        "has taken",
        "looked at",
    ),
    # Application services, and pushers
    case(
        "synapse.handlers.appservice ERROR",
        "Application Services Failure",
        "as_failure error",
        "until the next restart|The others get everything",
        "get nothing more",
    ),
    case(
        "synapse.notifier ERROR",
        "Error notifying application services of event",
        "notify_appservice_failed error",
        "fetched again",
        "The next events are handled",
    ),
    case(
        "synapse.handlers.appservice WARNING",
        "Receipt token 5 is behind stored position 9 for appservice irc",
        "as_token_behind look",
        "no receipts|Events are not concerned",
        "gets nothing",
    ),
    case(
        "synapse.appservice.scheduler ERROR",
        "Error creating appservice transaction",
        "as_transaction_failed error",
        "not sent again",
    ),
    case(
        "synapse.appservice.scheduler ERROR",
        "Error starting AS recoverer",
        "as_recoverer_failed error",
        "waits in the database",
    ),
    case(
        "synapse.push.httppusher WARNING",
        "Failed to send badge count to @a:b: <class 'ValueError'> x",
        "push_badge look",
        "not tried again",
        "longer and longer",
    ),
    case(
        "synapse.push.pusherpool ERROR",
        "Exception in pusher on_new_notifications",
        "push_round_failed error",
        "with the next event",
        "One pusher",
    ),
    # Replication
    case(
        "synapse.replication.tcp.resource ERROR",
        "Failed to replicate",
        "replicate_row_failed error",
        "It is not tried again",
        "All is tried again",
    ),
    case(
        "synapse.replication.tcp.handler ERROR",
        "Got POSITION for unknown stream: x",
        "unknown_stream error",
        "since 1.97",
        "With a POSITION it is a KeyError",
    ),
    case(
        "synapse.util.background_queue ERROR",
        "Error processing background queue item",
        "command_failed_queue error",
        "the next POSITION",
        "an RDATA or POSITION of one stream: this process lacks",
    ),
    case(
        "synapse.replication.http._base WARNING",
        "send_event request timed out",
        "http_timeout look",
        "is repeated",
        "Since 1.21",
    ),
    case(
        "synapse.replication.tcp.protocol ERROR",
        "[a-b] Failed to handle line: 'RDATA x'",
        "line_failed error",
        "failed here",
        "is closed",
    ),
    case(
        "",
        "Exception: Can't stream invalidate all with magic current state cache",
        "cache_all_write error",
        "No row was written",
        "by hand",
    ),
    case(
        "synapse_port_db WARNING",
        "DROPPING ROW: NUL value in table events col x: 'a'",
        "port_dropped look",
        "is missing in the copy",
        "does no harm",
    ),
]


@pytest.mark.parametrize("one", CASES, ids=lambda one: f"{one.kind}-{one.line[:40]}")
def test_a_message_tells_what_follows_from_it(one: Case) -> None:
    [passage] = explain(HEAD.format(one.logger, one.level, one.line) if one.logger else one.line).passages
    text = " ".join([*passage.words, *passage.advice])

    assert (one.kind, one.severity) == (passage.kind, passage.severity)
    assert [] == [words for words in one.said.split("|") if words not in text], text
    assert [] == [words for words in one.not_said.split("|") if words and words in text], text


def test_deleting_a_room_is_told_with_what_it_may_cost() -> None:
    """A room in which nobody of another homeserver is cannot be joined again."""
    advice = {one.key: one.do for one in known_messages()} | {one.means: one.do for one in known_faults()}
    told = [do for do in advice.values() if "elete" in do and "join it again" in do]

    assert len(told) >= 6
    assert [] == [do for do in told if "only if somebody of another homeserver is in it" not in do]


def test_a_login_module_that_fails_is_not_told_as_a_fault_of_synapse() -> None:
    """An empty password_config ended the script hash_password, whose traceback has no such file."""
    found = explain(
        "2024-01-01 00:00:00,000 - synapse.http.server - 100 - ERROR - POST-5 - Failed handle request via"
        " 'LoginRestServlet': <XForwardedForRequest at 0x7f method='POST'>\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/site-packages/synapse/rest/client/v1/login.py", line 300, in on_POST\n'
        "    x = yield self.provider.check(user)\n"
        '  File "/opt/modules/rest_auth.py", line 30, in check\n'
        '    mxid = r["auth"].get("mxid")\n'
        "AttributeError: 'NoneType' object has no attribute 'get'\n"
    )

    assert "password_config" not in str(found)


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("handlers/x.py", "'SynchrotronSlavedStore' object has no attribute 'is_support_user'"),
        ("logging/context.py", "'NoneType' object has no attribute 'start'"),
        ("types.py", "'NoneType' object has no attribute 'find'"),
    ],
)
def test_a_fault_that_no_release_is_known_to_have_is_told_so(file: str, error: str) -> None:
    [passage] = explain(
        f'Traceback (most recent call last):\n  File "/x/synapse/{file}", line 1, in f\n    x\n'
        f"AttributeError: {error}"
    ).passages

    assert "a state of the development" in " ".join(passage.words)
    assert "mended in" not in " ".join(passage.words)
