"""A cache with bounds and expiry."""

from twisted.internet.task import Clock

from synrepl.channel.resp.cache import DEFAULT_MS, ENTRY_BYTES, ExpiringCache


def test_a_value_is_kept_until_its_time_is_over() -> None:
    clock = Clock()
    cache = ExpiringCache(clock)
    cache.set((0, b"a"), b"1", 500)
    cache.set((0, b"b"), b"2")
    clock.advance(0.499)
    found = cache.get((0, b"a"))
    clock.advance(0.001)

    assert (b"1", None, b"2") == (found, cache.get((0, b"a")), cache.get((0, b"b")))
    clock.advance(DEFAULT_MS / 1000)
    assert cache.get((0, b"b")) is None
    assert (2, 2, 0, 0) == (cache.hits, cache.misses, len(cache), cache.size)


def test_databases_are_apart_and_a_new_value_replaces_the_old_one() -> None:
    cache = ExpiringCache(Clock())
    cache.set((0, b"a"), b"old" * 100)
    cache.set((0, b"a"), b"new")
    cache.set((1, b"a"), b"other")

    assert (b"new", b"other", None) == (cache.get((0, b"a")), cache.get((1, b"a")), cache.get((2, b"a")))
    assert 2 * (1 + ENTRY_BYTES) + 8 == cache.size


def test_the_least_recently_used_go_first() -> None:
    """What was read lately stays."""
    cache = ExpiringCache(Clock(), max_bytes=3 * (ENTRY_BYTES + 2))
    for name in (b"a", b"b", b"c"):
        cache.set((0, name), b"1")
    cache.get((0, b"a"))
    cache.set((0, b"d"), b"1")

    assert [b"1", None, b"1", b"1"] == [cache.get((0, name)) for name in (b"a", b"b", b"c", b"d")]
    assert 1 == cache.evicted
    cache.set((0, b"e"), bytes(10_000))
    assert 0 == len(cache)
