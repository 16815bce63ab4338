"""Patterns found by an index are those that a look at each of them finds, in the same order."""

from hypothesis import given
from hypothesis import strategies as st

from synrepl.homeserver.explanation.messages import Message, _Pattern
from synrepl.homeserver.explanation.text_index import HeadIndex, WordIndex

PIECES = ["aa", "ab", "b_", "é", " ", " ", ".", "[", "%s", "%r", "%i", "7"]
LISTS = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=7).map("".join), max_size=8)
TEXTS = st.lists(st.sampled_from([*PIECES[:-4], "'x'", "12", "a"]), min_size=1, max_size=12).map("".join)


def patterns(forms: list[str]) -> list[_Pattern]:
    message = Message(key="k", logger="", severity="look", means="", do="", forms=[])
    return [_Pattern(message, form, [("info", form, None, None)]) for form in forms]


@given(LISTS, TEXTS)
def test_words_leave_no_pattern_out(forms: list[str], text: str) -> None:
    known = patterns(forms)

    found = [one for one in WordIndex(known)[text] if one.search(text)]

    assert found == [one for one in known if one.search(text)]


@given(LISTS, TEXTS)
def test_heads_leave_no_pattern_out(forms: list[str], text: str) -> None:
    known = patterns(forms)

    found = [one for one in HeadIndex(known)[text] if one.match(text)]

    assert found == [one for one in known if one.match(text)]


def test_words_that_a_value_may_lengthen_do_not_count() -> None:
    [one] = patterns(["of %s is un%s: not id_"])

    assert one.words == ["of", "is", "not"]


def test_few_patterns_are_looked_at() -> None:
    """By the rarest word of each: that of no other one."""
    known = patterns(["the row is gone", "the row is late", "the table is gone"])

    assert [one.literals for one in WordIndex(known)["a row is late"]] == [["the row is late"]]
