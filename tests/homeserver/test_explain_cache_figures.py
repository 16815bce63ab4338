"""Samples of caches and pools: which one is too small, and which is not."""

import pytest

from synrepl.homeserver.explanation import Passage, explain

SMALL = """\
synapse_util_caches_cache_hits{name="get_users_in_room"} 100
synapse_util_caches_cache{name="get_users_in_room"} 40000
synapse_util_caches_cache_size{name="get_users_in_room"} 500
synapse_util_caches_cache_max_size{name="get_users_in_room"} 500
synapse_util_caches_cache_evicted_size{name="get_users_in_room",reason="size"} 39000
"""
OLD = SMALL.replace("cache_hits{", "cache:hits{").replace("caches_cache{", "caches_cache:total{")
WRONG = SMALL.replace('"size"}', '"invalidation"}').replace("_size{name", "_size{name", 1)
ROOMY = (
    SMALL.replace(" 100\n", " 39900\n")
    .replace('_cache_size{name="get_users_in_room"} 500', '_cache_size{name="get_users_in_room"} 20')
    .replace(" 39000", " 0")
)
FEW = SMALL.replace("40000", "400").replace("39000", "300")
POOL = "synapse_storage_schedule_time_sum {}\nsynapse_storage_schedule_time_count 100\n"


def only(text: str) -> Passage:
    [passage] = explain(text).passages
    return passage


@pytest.mark.parametrize(
    ("text", "severity", "said"),
    [
        (SMALL, "look", "Too small: get_users_in_room (39,000 dropped for want of room, and 0.2 % of 40,000"),
        (OLD, "look", "Too small: get_users_in_room (39,000 dropped for want of room, and 0.2 % of 40,000"),
        (WRONG, "", "Dropped as what they had became wrong (a larger one would not help): get_users_in_room"),
        (
            ROOMY,
            "",
            "With room left (a larger factor would change nothing): get_users_in_room (20 of 500, 99.8 %",
        ),
        (FEW, "", "caches of this process"),
        (
            SMALL.replace("40000", "NaN"),
            "look",
            "Too small: get_users_in_room (39,000 dropped for want of room)",
        ),
        (POOL.format(1234), "look", "On average a statement waited 12.3 s for a connection"),
        (POOL.format(0.1), "", "On average a statement waited 0.001 s for a connection"),
    ],
)
def test_caches_and_pools_are_judged_by_their_samples(text: str, severity: str, said: str) -> None:
    passage = only(text)

    assert severity == passage.severity
    assert any(said in one for one in passage.words)


def test_each_process_has_caches_of_its_own() -> None:
    """One is too small in one process, and has room in another."""
    one = SMALL.replace("{name", '{instance="a",name')
    other = ROOMY.replace("{name", '{instance="b",name')

    passage = only(one + other)

    assert ("Too small", "With room") == (passage.words[0][:9], passage.words[1][:9])


def test_more_caches_are_judged_than_samples_shown() -> None:
    many = "".join(SMALL.replace("get_users_in_room", f"cache_{number}") for number in range(20))

    assert only(many).words[0].endswith("and others.")


@pytest.mark.parametrize(
    "text",
    [
        'synapse_util_caches_cache_size{name="x"} 1.2.3',
        "synapse_storage_schedule_time_sum 1.2.3",
        '{"data":{"result":[{"metric":{"__name__":"synapse_util_caches_cache_size","name":"x"},"value":[1,"abc"]}]}}',
        '{"data":{"result":[{"metric":{"__name__":"synapse_util_caches_cache_size","name":"x"},"value":[1,2]}]}}',
    ],
)
def test_what_is_no_number_is_no_sample(text: str) -> None:
    """A line ends no explanation of a whole log."""
    found = explain(f"{text}\n{SMALL}")

    assert ["metric"] == [one.kind for one in found.passages]
    assert 1 == found.unrecognized
