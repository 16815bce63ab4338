"""Addresses that people hid before they pasted a line stand for one, and are no part of the answer."""

import pytest

from synrepl.homeserver.explanation import Passage, explain

HIDDEN = (
    "<valid and correct ip>",
    "<<ip>>",
    "[redacted]",
    "[my server]",
    "x.x.x.x",
    "10.xx.xx.218",
    "192.168.1.***",
    "aaa.bbb.ccc.ddd",
    "***",
    "xxxx",
    "REDACTED",
    "example",
    "(ip)",
    "{{ ip }}",
    "&lt;my ip&gt;",
    "`hidden`",
    "\N{FULL BLOCK}\N{FULL BLOCK}",
    "MY_IP",
    "your-server-ip",
)
LINES = (
    # matrix-org/synapse#6603
    (
        'time="2019-12-29T20:37:46Z" level=debug msg="\'504 Gateway Timeout\' caused by: dial tcp {}:8008:'
        ' i/o timeout"'
    ),
    "dial tcp 192.0.2.9:4242->{}:8008: i/o timeout",
    '{{"level":"error","msg":"dial tcp {}:8008: connect: connection refused"}}',
    (
        "2024/01/01 00:00:00 [error] 29#29: *1 connect() failed (111: Connection refused) while connecting to"
        ' upstream, client: {0}, request: "GET / HTTP/2.0", upstream: "http://{0}:8008/x", host: "h"'
    ),
    (
        "2024/01/01 00:00:00 [error] 29#29: *1 upstream timed out (110: Connection timed out) while reading"
        ' response header from upstream, client: {0}, request: "GET / HTTP/2.0", upstream: "http://{0}:8008/"'
    ),
    "(111)Connection refused: AH00957: HTTP: attempt to connect to {0}:8008 ({0}) failed",
    "AH00959: ap_proxy_connect_backend disabling worker for ({}:8008) for 60s",
    "AH01102: error reading status line from remote server {}:8008",
    'FATAL:  no pg_hba.conf entry for host "{}", user "ada", database "b", no encryption',
)


def told(line: str) -> Passage:
    [passage] = explain(line).passages
    return passage


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_hidden_address_is_told_as_one_that_is_shown(line: str, hidden: str) -> None:
    shown, found = told(line.format("10.0.0.7")), told(line.format(hidden))

    assert (found.kind, found.severity) == (shown.kind, shown.severity)
    assert found.words[0] == shown.words[0].replace("10.0.0.7", "HOST")
    assert found.advice == [step.replace("10.0.0.7", "HOST") for step in shown.advice]
    assert "HOST" in found.words[0]


@pytest.mark.parametrize(
    "name", ["synapse", "server", "[::1]", "[fd00::7]", "host-ip.example.org", "localhost"]
)
def test_an_address_that_is_shown_is_kept(name: str) -> None:
    assert name in told(LINES[2].format(name)).words[0]


def test_postgresql_names_its_socket_in_brackets() -> None:
    assert "from [local] into" in told(LINES[-1].format("[local]")).words[0]


def test_a_path_of_apache_is_no_address() -> None:
    found = told("AH00898: Error reading from remote server returned by /_matrix/client/r0/sync")

    assert found.words[0].startswith("The process, to which a proxy passed a request,")


def test_a_hidden_port_is_left_out() -> None:
    assert "HOST" in told("dial tcp <ip>:<port>: i/o timeout").words[0]


@pytest.mark.parametrize("address", ["127.0.0.1:41678", "[::1]:41678", "[redacted]:41678"])
def test_commands_of_redis_are_read_of_any_client(address: str) -> None:
    found = told(f'1795226010.139287 [0 {address}] "SUBSCRIBE" "hs"')

    assert found.kind == "redis_commands"


def test_a_name_that_is_not_looked_up_in_time_is_no_slow_answer() -> None:
    found = told(
        "'504 Gateway Timeout' caused by: dial tcp: lookup synapse on 127.0.0.11:53: read udp"
        " 172.20.0.5:4242->127.0.0.11:53: i/o timeout"
    )

    assert found.words[0].startswith("A proxy asked for the address of synapse")
