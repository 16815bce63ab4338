"""YAML whose aliases do not multiply: a few lines of them can stand for more values than memory holds."""

from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

MAX_VALUES: Final = 100_000
"""The most values of a file, of which each counts as often as an alias repeats it."""


class BoundedLoader(yaml.SafeLoader):
    """Reads YAML of at most `MAX_VALUES` values. Raises `ConstructorError`, also if one contains itself."""

    def compose_document(self) -> Any:
        """Compose a document."""
        node = super().compose_document()
        if node is not None:
            _count(node, {})
        return node


class LayeredLoader(BoundedLoader):
    """Reads a mapping as several, if keys at its top are repeated: each such key begins a new one."""

    def get_single_data(self) -> list[Any]:
        """The values, in order; later ones count more."""
        node = self.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            return [None if node is None else self.construct_document(node)]
        layers: list[dict[Any, tuple[yaml.Node, yaml.Node]]] = [{}]
        for at, (key, value) in enumerate(node.value):
            # "<<" merges, and may be there more than once.
            is_name = isinstance(key, yaml.ScalarNode) and key.value != "<<"
            name = key.value if is_name else at
            if name in layers[-1]:
                layers.append({})
            layers[-1][name] = key, value
        ends = node.start_mark, node.end_mark
        return [
            self.construct_document(yaml.MappingNode(node.tag, list(one.values()), *ends)) for one in layers
        ]


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
