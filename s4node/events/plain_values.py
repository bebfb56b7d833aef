"""Values whose maps have no arrays as keys. Pure.

Rules
- An array as a key of a map becomes a tuple, and Python's hash of a tuple of numbers is known to
  everybody: a peer can choose thousands of such keys with one hash, which take seconds to decode.
- What peers send beside events has keys of text and numbers, and nests at most 8 levels, or
  4 in the headers of frames.
- Events may hold such maps, but only small ones: of each map the arrays among its keys are counted
  before it is decoded. That is slow, so only what can hold a map with many entries is looked at.
"""

from __future__ import annotations

import re
import struct
import sys
from typing import Any, NewType

import msgspec

from s4node.errors import EventError

MOST = 64
"""The most arrays among the keys of a map."""

_LEVELS = 8
_BINARY = frozenset(b"\xc4\xc5\xc6")  # how bytes begin


def plain_of(whole: Any, levels: int = _LEVELS) -> Any:
    """The type of values of texts, numbers, arrays and maps; ``whole`` is that of whole numbers."""
    scalar = None | bool | whole | float | str
    if not levels:
        return scalar
    inner = plain_of(whole, levels - 1)
    # as a new type, which is hashed and evaluated without what is in it: each level has it twice
    return NewType("Plain", scalar | list[inner] | dict[str | whole, inner])  # type: ignore[valid-type]


_decode_plain = msgspec.msgpack.Decoder(plain_of(int)).decode
_decode_bytes = msgspec.msgpack.Decoder(bytes).decode


def value_of(raw: msgspec.Raw) -> Any:
    """The plain value, or the bytes, of ``raw``; raises msgspec's errors for anything else."""
    view = memoryview(raw)
    return _decode_bytes(view) if view[0] in _BINARY else _decode_plain(view)


_LARGE_MAP = re.compile(rb"\xde[\x00-\xff]{2}|\xdf[\x00-\xff]{4}")
_SMALL = 1024
"""Events of fewer bytes hold too few keys to matter."""

_decode_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def check_events(body: bytes | memoryview) -> None:
    """Raise EventError if one of the events of a body has a map with many arrays as keys."""
    if not _LARGE_MAP.search(body):
        return
    for raw in _decode_raws(body):
        check_value(raw)


def check_value(value: Any) -> None:
    """Raise EventError if a value of msgpack has a map with many arrays as keys."""
    if len(value) < _SMALL or not _LARGE_MAP.search(value):
        return
    if array_keys(memoryview(value), MOST) > MOST:
        raise EventError(f"it has a map with more than {MOST} arrays as keys, which are slow")


_FIXED = {  # the bytes after the first one
    **dict.fromkeys((0xC0, 0xC1, 0xC2, 0xC3), 0),
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xCA: 4,
    0xCB: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
    **dict.fromkeys((*range(0x80), *range(0xE0, 0x100)), 0),
    **{0xA0 | size: size for size in range(32)},
}
_SIZED = {  # how the length is written, and the bytes beside it
    0xC4: (struct.Struct(">B"), 0),
    0xC5: (struct.Struct(">H"), 0),
    0xC6: (struct.Struct(">I"), 0),
    0xC7: (struct.Struct(">B"), 1),
    0xC8: (struct.Struct(">H"), 1),
    0xC9: (struct.Struct(">I"), 1),
    0xD9: (struct.Struct(">B"), 0),
    0xDA: (struct.Struct(">H"), 0),
    0xDB: (struct.Struct(">I"), 0),
}
_ARRAYS = {0xDC: struct.Struct(">H"), 0xDD: struct.Struct(">I")}
_MAPS = {0xDE: struct.Struct(">H"), 0xDF: struct.Struct(">I")}


def array_keys(data: bytes | memoryview, enough: int = sys.maxsize) -> int:
    """The most arrays among the keys of one map of a value; counts no further beyond ``enough``.

    Raises EventError if the value ends early.
    """
    most = 0
    at, end = 0, len(data)
    open_: list[list[int]] = []  # of each container: the items to come, 1 for a map, array keys
    left, is_map, found = 1, 0, 0
    while True:
        while not left:
            most = max(most, found)
            if not open_:
                return most
            left, is_map, found = open_.pop()
        if at >= end:
            raise EventError("it ends early")
        first = data[at]
        at += 1
        key = is_map and not left & 1
        left -= 1
        size = _FIXED.get(first)
        if size is not None:
            at += size
        elif first in _SIZED:
            shape, beside = _SIZED[first]
            at += shape.size + beside + _number(shape, data, at)
        else:
            if first < 0x90:
                inner, inner_map = 2 * (first & 0xF), 1
            elif first < 0xA0:
                inner, inner_map = first & 0xF, 0
            elif first in _ARRAYS:
                inner, inner_map = _number(_ARRAYS[first], data, at), 0
                at += _ARRAYS[first].size
            else:
                inner, inner_map = 2 * _number(_MAPS[first], data, at), 1
                at += _MAPS[first].size
            if key and not inner_map:
                found += 1
                if found > enough:
                    return found
            open_.append([left, is_map, found])
            left, is_map, found = inner, inner_map, 0


def _number(shape: struct.Struct, data: bytes | memoryview, at: int) -> int:
    try:
        (number,) = shape.unpack_from(data, at)
    except struct.error as error:
        raise EventError("it ends early") from error
    return int(number)
