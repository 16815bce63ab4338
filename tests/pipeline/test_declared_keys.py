"""Keys of streams in the pipeline."""

from synrepl.pipeline.keys import KeyExtractor


def test_a_declared_stream_has_keys() -> None:
    """As the daemon lists it; without the declaration its rows have none."""
    declared = [
        {"name": "packages", "key": ["name"], "kind": "kept", "columns": {"name": "str", "size": "int"}},
        {"name": "notes", "key": ["id"], "columns": None},
        {"name": "of-a-later-release", "columns": {"at": "date"}},
    ]
    keys = KeyExtractor(declared)

    assert keys.extract("packages", ['["twisted",5]', None]) == ['["twisted"]', None]
    assert keys.extract("notes", ['[{"id":7}]']) == ["[7]"]
    assert keys.extract("of-a-later-release", ["[1]"]) == [None]
    assert KeyExtractor().extract("packages", ['["twisted",5]']) == [None]


def test_rows_of_device_lists_have_the_keys_of_their_kinds() -> None:
    """A snapshot keeps the last of each; rows that an earlier release archived keep their old key."""
    rows = ('["@a:h",false,false]', '["@a:h",true,false]', '["@a:h",false,false,"far"]', '["@a:h"]')
    assert KeyExtractor().extract("device_lists", [*rows]) == [
        '["@a:h",false,false,null]',
        '["@a:h",true,false,null]',
        '["@a:h",false,false,"far"]',
        '["@a:h",false,false,null]',
    ]
