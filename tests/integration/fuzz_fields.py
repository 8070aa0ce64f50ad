"""Every field of every document, found by its type, and what is put into each: so that a new field is fuzzed by itself.

A *place* is the way to a field: names of members, and positions in lists. Hostile values are written text by text and
byte by byte, because much of what is hostile has no value in Python: numbers that no float holds, halves of a surrogate
pair, a member twice, half a document.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st
from msgspec import inspect
from pydantic import BaseModel

from ledger_api.wire import submissions

Place = tuple[str | int, ...]
DEEP = 100_000

# ---- where ----


def places(kind: object) -> list[Place]:
    """The way to every field that a msgspec type has, parts of parts included; containers come before their parts."""
    return list(dict.fromkeys(_places(inspect.type_info(kind), ())))


def _places(kind: inspect.Type, at: Place) -> Iterator[Place]:
    match kind:
        case inspect.Metadata(extra_json_schema={"$ref": str(reference)}):
            document = getattr(submissions, reference.rpartition("/")[2])
            yield from _places(inspect.type_info(document), at)
        case inspect.Metadata(type=inner):
            yield from _places(inner, at)
        case inspect.StructType(fields=fields, array_like=True, tag=tag):
            first = 0 if tag is None else 1
            yield from ((*at, number) for number in range(first))
            for number, field in enumerate(fields, first):
                yield from _part(field.type, (*at, number))
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from _part(field.type, (*at, field.encode_name))
        case inspect.TupleType(item_types=items):
            for number, item in enumerate(items):
                yield from _part(item, (*at, number))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _part(item, (*at, 0))
        case inspect.DictType(value_type=value):
            yield from _part(value, (*at, "a"))
        case inspect.UnionType(types=members):
            for member in members:
                yield from _places(member, at)


def _part(kind: inspect.Type, at: Place) -> Iterator[Place]:
    yield at
    yield from _places(kind, at)


def settings_places(model: type[BaseModel]) -> Iterator[tuple[Place, Any]]:
    """The way to every setting of a pydantic model, with its field; of a list's items, to the first one."""
    for name, field in model.model_fields.items():
        nested = _model_in(field.annotation)
        yield (name,), field
        if nested is not None:
            inner = (name, 0) if get_origin(field.annotation) is tuple else (name,)
            yield from (((*inner, *place), found) for place, found in settings_places(nested))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, Union, types.UnionType):
        return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
    return None


# ---- what ----

NUMBERS = [
    *("0", "-0", "-0.0", "1", "-1", "0.1", "-1e-9", "1e-320", "1e9", "1e13", "1e15", "1e18", "1e300", "1e303", "1e308"),
    *(str(base + more) for base in (2**31, 2**32, 2**53, 2**63, 2**64) for more in (-1, 0)),
    *(str(-(2**63) - more) for more in (0, 1)),
    *("1e309", "-1e309", "1" + 400 * "0", 5_000 * "9", "0." + 5_000 * "1", "NaN", "Infinity", "-Infinity", "nan", "+1"),
]
_TEXTS = [
    *(
        "",
        " ",
        "0",
        "\0",
        "a\0b",
        "\x1f",
        "\x7f",
        "\x85",
        "\u200d",
        "\u2028",
        "\u202e",
        "\u2066",
        "\ufeff",
        "\U0010ffff",
    ),
    *("'; --", "%00%s{0}$(x)", "../../x", "null", "NaN", "é" * 128, "x" * 255, "x" * 256, "x" * 512, "x" * 513),
    *("x" * DEEP, "0" * 64, "G" * 64, "f" * 63 + " ", "0" * 128, "0" * 64 + ":4294967295", "0" * 64 + ":4294967296"),
    *("0" * 64 + ":-1", "0" * 64 + ":١", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59Z"),
    *(
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:60-23:59",
        "9999-12-31T23:59:59-23:59",
        "2026-02-30T00:00:00Z",
        "2026-01-01T00:00:00",
    ),
    *("O=Bank A,L=London,C=GB", "CN=" + "x" * 510, "é"),
]
_OTHERS = [
    *(b"null", b"true", b"false", b"[]", b"{}", b"[null]", b'[""]', b"[[]]", b'{"a":1}', b'{"a":1,"a":2}', b"", b"x"),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\x00"', b'"\n"', b'"a', b"1}", b"1,", b"//"),
    b"[" * DEEP + b"]" * DEEP,
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"[" + b"0," * DEEP + b"0]",
    b'["a' + b'","a' * 20 + b'"]',
]
JSON_VALUES = [
    *(number.encode() for number in NUMBERS),
    *(json.dumps(text, ensure_ascii=False).encode() for text in _TEXTS),
    *_OTHERS,
]
"""JSON texts, and some that are none."""

MSGPACK_VALUES = [
    *(msgspec.msgpack.encode(value) for value in (None, True, False, [], {}, [None], [[]], b"", {"a": 1}, "", b"\0")),
    *(
        msgspec.msgpack.encode(value)
        for value in (0, 1, -1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
    ),
    *(msgspec.msgpack.encode(value) for value in (0.0, -0.0, -1.0, 1e-320, 1e13, 1e303, 1e308)),
    *(msgspec.msgpack.encode(value) for value in (math.nan, math.inf, -math.inf)),
    *(msgspec.msgpack.encode(text) for text in _TEXTS),
    *(msgspec.msgpack.encode(bytes(size)) for size in (31, 32, 36, 63, 64, 65, 1_000, DEEP)),
    msgspec.msgpack.encode(["a"] * 17),
    msgspec.msgpack.encode([0] * DEEP),
    *(b"\x91" * depth + b"\xc0" for depth in (100, DEEP)),
    *(
        b"\xa1\xff",
        b"\xa3\xed\xa0\x80",
        b"\xc1",
        b"\xd9",
        b"\xdb\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ),
    *(
        b"\xd4\x01\x00",
        b"\xd6\xff\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xca\x7f\xc0\x00\x00",
    ),
]
"""MessagePack values, and some that are none."""

_NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(st.characters(), max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


def json_values() -> st.SearchStrategy[bytes]:
    """JSON texts of every kind; surrogates are written as escapes, NaN and the infinities as Python writes them."""
    return st.sampled_from(JSON_VALUES) | _NESTED.map(lambda value: json.dumps(value).encode())


def msgpack_values() -> st.SearchStrategy[bytes]:
    """MessagePack of every kind."""
    whole = _NESTED.map(_msgpack)
    return st.sampled_from(MSGPACK_VALUES) | whole | st.binary(max_size=40)


def _msgpack(value: object) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return b"\xcf" + b"\xff" * 8


# ---- a good document with one bad place ----


def changed(good: Any, place: Place, raw: bytes) -> Any:
    """The document with these bytes in one place. What the place lies in is made, where the good one leaves it out."""
    return placed(good, place, msgspec.Raw(raw))


def placed(good: Any, place: Place, value: Any) -> Any:
    """The same, with a value."""
    if not place:
        return value
    first, rest = place[0], place[1:]
    if isinstance(first, int):
        items = list(good) if isinstance(good, list | tuple) else []
        items += [None] * (first + 1 - len(items))
        items[first] = placed(items[first], rest, value)
        return items
    members = dict(good) if isinstance(good, dict) else {}
    members[first] = placed(members.get(first), rest, value)
    return members


def twice(good: Any, place: Place, raw: bytes) -> Any:
    """The document with one member there a second time: as it was, and with these bytes behind it."""
    if len(place) == 1:
        name = json.dumps(place[0]).encode()
        members = [json.dumps(key).encode() + b":" + msgspec.json.encode(value) for key, value in good.items()]
        return msgspec.Raw(b"{" + b",".join([*members, name + b":" + raw]) + b"}")
    first, rest = place[0], place[1:]
    inner = good[first]
    again = twice(inner, rest, raw)
    if isinstance(first, int):
        return [*good[:first], again, *good[first + 1 :]]
    return {**good, first: again}


def has(good: Any, place: Place) -> bool:
    """Whether the good document has something in that place, which is a member of an object."""
    try:
        for part in place:
            good = good[part]
    except (KeyError, IndexError, TypeError):
        return False
    return isinstance(place[-1], str)


def without(good: Any, place: Place) -> Any:
    """The document without what is in that place."""
    first, rest = place[0], place[1:]
    if not rest:
        if isinstance(good, dict):
            return {key: value for key, value in good.items() if key != first}
        return [item for number, item in enumerate(good or ()) if number != first]
    if isinstance(first, int):
        return [without(item, rest) if number == first else item for number, item in enumerate(good)]
    return {**good, first: without(good[first], rest)} if isinstance(good, dict) and first in good else good
