"""YAML whose aliases do not multiply: a few lines of them can stand for more values than memory holds."""

from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

MAX_VALUES: Final = 100_000
"""The most values of a file, of which each counts as often as an alias repeats it."""


class BoundedLoader(yaml.SafeLoader):
    """Reads YAML of at most `MAX_VALUES` values. Raises `ConstructorError`, also if one contains itself."""

    def get_single_node(self) -> Any:
        """Compose the document."""
        node = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """The values in a node, itself and the keys of mappings included."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    count = known.get(id(node))
    if count == 0:
        raise ConstructorError(None, None, "a value contains itself", node.start_mark)
    if count is not None:
        return count
    known[id(node)] = 0
    count = 1
    for part in node.value:
        for one in part if isinstance(part, tuple) else (part,):
            count += _count(one, known)
    if count > MAX_VALUES:
        raise ConstructorError(
            None, None, f"more than {MAX_VALUES:,} values, with those that aliases repeat", node.start_mark
        )
    known[id(node)] = count
    return count
