"""Every minor release from 1.0 to the newest has the commands, with the words, that its tag has."""

import re

import pytest

from synrepl.wire.commands import EpochNotice, Moved, Rewind, declared_commands
from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import CommandForm
from tests.releases import MINORS, at, facts

OURS = {EpochNotice, Moved, Rewind}
"""Commands between daemons, which no release has."""


def words_of(form: str) -> int:
    """The number of arguments in a form such as ``stream_name token|batch row_json``."""
    if form.startswith("(nothing"):
        return 1  # After the word comes a space, and nothing.
    return len(re.sub(r" \(.*?\)|\[.*?\]", "", form).split())


@pytest.mark.parametrize("dialect", MINORS, ids=str)
def test_a_release_has_its_commands_with_their_arguments(dialect: Dialect) -> None:
    """A receiver of another form does not parse the line."""
    expected = {
        name: words_of(form[2])
        for name, one in facts("commands")["commands"].items()
        if (form := at(one["spans"], dialect))
    }
    found = {
        made.NAME: len(CommandForm(made, dialect).fields)
        for made in declared_commands()
        if made not in OURS and dialect.release in made.SPAN
    }

    assert expected == found
