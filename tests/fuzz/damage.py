"""Files as strangers bring them: valid ones that were cut, turned or stretched somewhere, and JSON of any shape.

The law for whatever reads them: an answer, or an OverdriveError of one line that a person can be shown.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

from overdrive.errors import OverdriveError

T = TypeVar("T")
MOST_CHARS = 2000
ODD_NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**30, 0.5, float("nan"), float("inf"), -float("inf")]


def answers(read: Callable[[], T]) -> T | None:
    """What `read` returns; None where it refuses in one line. Any other exception is a fault."""
    try:
        return read()
    except OverdriveError as error:
        said = str(error)
        assert said.strip() and "\n" not in said.strip() and len(said) < MOST_CHARS, said[:300]
        return None


leaves = st.one_of(
    st.none(), st.booleans(), st.sampled_from(ODD_NUMBERS), st.integers(-9, 300), st.text(max_size=12), st.just("/etc")
)
any_json = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def deep(levels: int) -> str:
    """JSON text nested so deep."""
    return "[" * levels + "]" * levels


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, one in inner for place in _places(one, (*path, key))]


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value of which one to three parts were replaced, doubled or taken away."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(value)
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        inner = value
        for key in way:
            inner = inner[key]
        action = draw(st.sampled_from(["replace", "replace", "drop", "stretch"]))
        if action == "drop":
            del inner[last]
        elif action == "stretch" and isinstance(inner[last], (str, list)):
            inner[last] = inner[last] * draw(st.integers(0, 3))
        else:
            inner[last] = draw(any_json)
    return value


@st.composite
def json_text(draw: st.DrawFn, value: Any) -> bytes:
    """The text of a changed value, or text that is hardly JSON."""
    if draw(st.integers(0, 9)):
        return json.dumps(draw(changed(value))).encode()
    odd = [b"", b"[]", b"null", b"{", b'{"a": }', b"\xff\xfe{}", b'"\\ud800"', deep(100_000).encode(), b"1" * 5000]
    return draw(st.sampled_from(odd))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, head: int) -> bytes:
    """Bytes of which one to four places, most of them in the first `head`, were changed, cut out or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, min(head, len(data)) - 1)))
        match draw(st.sampled_from(["byte", "number", "cut", "drop", "insert"])):
            case "byte":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "number":
                size = draw(st.sampled_from([4, 8]))
                number = draw(st.sampled_from([0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]))
                data[at : at + size] = (number % 256**size).to_bytes(size, "little")
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + draw(st.integers(1, 16))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
    return bytes(data)
