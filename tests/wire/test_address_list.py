"""Which address is next."""

import pytest

from synrepl.errors import ConfigError
from synrepl.wire.address_list import AddressList, Fault, fault_of

FENCED, STOPPED, NOT_READY, AWAY = Fault.FENCED, Fault.STOPPED, Fault.NOT_READY, Fault.UNREACHABLE


def listed(*addresses: str) -> AddressList:
    return AddressList(addresses or ("a", "b", "c"))


@pytest.mark.parametrize(
    ("faults", "tried"),
    [
        ([AWAY, AWAY, AWAY, AWAY, AWAY], "abcabc"),
        ([FENCED, AWAY, AWAY, AWAY, AWAY, AWAY], "abcbcaa"),
        ([FENCED, STOPPED, AWAY, AWAY, AWAY, AWAY], "abccaba"),
        ([NOT_READY, AWAY, FENCED, NOT_READY, AWAY], "abcabc"),
    ],
)
def test_each_round_tries_every_address_once_and_those_of_no_use_last(
    faults: list[Fault], tried: str
) -> None:
    """An operator must repair a fenced or stopped daemon; any other may be back at once."""
    servers = listed()
    seen = servers.current
    for fault in faults:
        servers.failed(fault)
        seen += servers.current

    assert tried == seen


def test_a_round_ends_when_each_address_was_tried() -> None:
    """An address that works is found without a pause."""
    servers = listed()

    assert [servers.failed() for _ in range(6)] == [False, False, True] * 2


def test_each_attempt_at_a_single_address_is_a_round() -> None:
    """As if there were no list."""
    servers = listed("a")

    assert [servers.failed() for _ in range(3)] == [True, True, True]


def test_a_lost_server_that_worked_is_tried_after_the_unknown_ones() -> None:
    """It may be restarting, while another one is primary."""
    servers = listed()
    servers.failed(FENCED)
    servers.succeeded()
    servers.failed(AWAY)

    assert "c" == servers.current
    servers.failed(AWAY)
    assert "b" == servers.current
    servers.failed(AWAY)
    assert "a" == servers.current


def test_two_servers_that_drop_every_connection_that_worked_are_not_hammered() -> None:
    """Each loss costs a pause."""
    servers, is_new_round = listed("a", "b"), []
    for _ in range(10):
        servers.succeeded()
        is_new_round.append(servers.failed())

    assert [True] * 10 == is_new_round


def test_the_address_that_a_server_names_is_next_if_it_is_in_the_list() -> None:
    """And any other address is never used."""
    servers = listed()
    servers.failed(FENCED, moved_to=["evil", "c"])
    assert "c" == servers.current

    servers = listed()
    servers.failed(FENCED, moved_to=["evil"])
    assert "b" == servers.current


def test_two_servers_that_name_each_other_are_asked_once_a_round() -> None:
    """Without this rule they would be asked without a pause."""
    servers = listed("a", "b")
    is_new_round, tried = [], []
    for _ in range(6):
        other = "b" if servers.current == "a" else "a"
        tried.append(servers.current)
        is_new_round.append(servers.failed(FENCED, moved_to=[other]))

    assert ["a", "b", "a", "b", "a", "b"] == tried
    assert [False, True] * 3 == is_new_round


def test_what_was_learnt_of_an_address_is_forgotten_when_it_works() -> None:
    """A fenced daemon may be primary again."""
    servers = listed("a", "b")
    servers.failed(FENCED)
    servers.failed(AWAY)
    assert {"a": FENCED, "b": AWAY} == servers.faults
    servers.failed(AWAY)
    assert "a" == servers.current
    servers.succeeded()

    assert {"b": AWAY} == servers.faults


@pytest.mark.parametrize("addresses", [[], ["a", "a"]])
def test_a_list_has_each_address_once(addresses: list[str]) -> None:
    """And at least one."""
    with pytest.raises(ConfigError):
        AddressList(addresses)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("fenced", FENCED),
        ("read_only", FENCED),
        ("stopping", STOPPED),
        ("not_ready", NOT_READY),
        ("x", Fault.REFUSING),
    ],
)
def test_codes_of_daemons_are_faults(code: str, fault: Fault) -> None:
    """Over HTTP and on the line protocol alike."""
    assert fault is fault_of(code)
