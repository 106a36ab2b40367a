"""Exchange values between the tests and a solution: plain data as JSON, never objects that a solution defines.

A solution answers from its own process. Its answer is rebuilt from built-in types only. So the tests never meet an
object of the solution (with its own `__eq__`, for example), and nothing is unpickled.
"""

from __future__ import annotations

import json
import numbers
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

# A linked list or tree with more nodes is refused, because it may be a cycle.
_MAX_NODES = 100_000
# This many values of a set, or keys of a dict, may have the same hash. Honest values hardly ever have, except tuples
# that differ only in -1 and -2, which have the same hash in Python.
_MAX_EQUAL_HASHES = 256


class ListNode:
    """Node of a linked list, as LeetCode defines it."""

    def __init__(self, val: Any = 0, next: ListNode | None = None):
        self.val = val
        self.next = next


class TreeNode:
    """Node of a binary tree, as LeetCode defines it."""

    def __init__(self, val: Any = 0, left: TreeNode | None = None, right: TreeNode | None = None):
        self.val = val
        self.left = left
        self.right = right


def list_node(values: list[Any]) -> ListNode | None:
    """Return the first node of a linked list of `values`; None if there are no values."""
    first = None
    for value in reversed(values):
        first = ListNode(value, first)
    return first


def tree_node(values: list[Any]) -> TreeNode | None:
    """Return the tree whose nodes are `values`, level by level. None stands for an absent node.

    Raises ValueError if values remain after the last level.
    """
    if not values or values[0] is None:
        return None
    root = TreeNode(values[0])
    parents, remaining = deque([root]), deque(values[1:])
    while remaining:
        if not parents:
            raise ValueError(f"not a tree in level order: {str(values)[:80]}")
        parent = parents.popleft()
        for side in ("left", "right"):
            value = remaining.popleft() if remaining else None
            if value is not None:
                node = TreeNode(value)
                setattr(parent, side, node)
                parents.append(node)
    return root


def list_values(first: ListNode | None) -> list[Any]:
    """Inverse of list_node: return the values of a linked list. Raises ValueError for a list that seems not to end."""
    values: list[Any] = []
    while first is not None:
        values.append(first.val)
        first = first.next
        if len(values) > _MAX_NODES:
            raise ValueError(f"linked list of more than {_MAX_NODES} nodes, or a cycle")
    return values


def tree_values(root: TreeNode | None) -> list[Any]:
    """Inverse of tree_node: return the tree's values, without Nones at the end. Raises ValueError for a tree that seems
    endless."""
    values: list[Any] = []
    nodes = deque([root])
    while nodes:
        node = nodes.popleft()
        values.append(None if node is None else node.val)
        if node is not None:
            nodes += (node.left, node.right)
        if len(values) > _MAX_NODES:
            raise ValueError(f"tree of more than {_MAX_NODES} nodes, or a cycle")
    while values and values[-1] is None:
        values.pop()
    return values


def is_same_list(one: Any, other: Any) -> bool:
    """Return whether two linked lists (or None) are equal. Any other value equals nothing."""
    return _is(one, ListNode) and _is(other, ListNode) and bool(list_values(one) == list_values(other))


def is_same_tree(one: Any, other: Any) -> bool:
    """Return whether two trees (or None) are equal. Any other value equals nothing."""
    return _is(one, TreeNode) and _is(other, TreeNode) and bool(tree_values(one) == tree_values(other))


def _is(value: Any, kind: type) -> bool:
    return value is None or isinstance(value, kind)


def _pack(value: Any) -> Any:
    """Convert a value to JSON's types. A subclass becomes its base: a defaultdict becomes the dict that it equals."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [_pack(item) for item in value]
    for tag, kind in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, kind):
            return {"t": tag, "v": [_pack(item) for item in value]}
    if isinstance(value, dict):
        return {"t": "dict", "v": [[_pack(key), _pack(item)] for key, item in value.items()]}
    if isinstance(value, bytes | bytearray):
        return {"t": "bytes", "v": value.hex()}
    if isinstance(value, complex):
        return {"t": "complex", "v": [value.real, value.imag]}
    if isinstance(value, ListNode):
        return {"t": "list_node", "v": _pack(list_values(value))}
    if isinstance(value, TreeNode):
        return {"t": "tree_node", "v": _pack(tree_values(value))}
    raise TypeError(f"a {type(value).__name__} cannot be passed: only built-in data, ListNode and TreeNode")


def _hashed(kind: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return a function that builds a set, or a dict of pairs. Raises ValueError if many of its members have the same
    hash: to build it then takes quadratic time."""

    def build(items: list[Any]) -> Any:
        members = (key for key, _ in items) if kind is dict else items
        if (count := max(Counter(map(hash, members)).values(), default=0)) > _MAX_EQUAL_HASHES:
            raise ValueError(f"{count} values have the same hash")
        return kind(items)

    return build


def _check_nodes(values: list[Any]) -> list[Any]:
    """Return the values of a linked list or tree unchanged. Raises ValueError if there are more than _MAX_NODES."""
    if len(values) > _MAX_NODES:
        raise ValueError(f"linked list or tree of more than {_MAX_NODES} nodes")
    return values


_BUILD: dict[str, Any] = {
    "tuple": tuple,
    "set": _hashed(set),
    "frozenset": _hashed(frozenset),
    "dict": _hashed(dict),
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
    "list_node": lambda values: list_node(_check_nodes(values)),
    "tree_node": lambda values: tree_node(_check_nodes(values)),
}


def _unpack(packed: Any) -> Any:
    """Inverse of _pack. Lists are changed in place, which halves the memory for large ones."""
    if isinstance(packed, list):
        for index, item in enumerate(packed):
            packed[index] = _unpack(item)
        return packed
    if isinstance(packed, dict):
        return _BUILD[packed["t"]](_unpack(packed["v"]))
    return packed


def encode(value: Any) -> bytes:
    """Convert a value to JSON.

    Raises TypeError for a value that is not plain data, ValueError or RecursionError for a structure without an end.
    """
    return json.dumps(_pack(value)).encode()


def decode(data: bytes) -> Any:
    """Inverse of encode. Raises ValueError for data that encode cannot have produced."""
    try:
        return _unpack(json.loads(data))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a value: {type(error).__name__}") from error
