"""Event types as they are declared on the wire: names, fingerprints, and who reads whose.

Rules
- A type is identified by its name and a fingerprint of its ordered fields.
- A reader understands another version of a type if the shorter field list is the beginning of the
  longer one, what the writer lacks has defaults on the reader's side, and the reader's types take
  all values of the writer's (``type_text``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Annotated, TypeAlias

import msgspec

from s4node.events.type_text import takes

MAX_DECLARED = 64
"""The most event types that one hello may declare, in either direction."""

FieldDecl: TypeAlias = tuple[str, str, bool]
"""A field's name, its type as text, and whether it must be present."""


class TypeDecl(msgspec.Struct, frozen=True, array_like=True):
    """A type as it is declared on the wire."""

    name: str
    fingerprint: Annotated[int, msgspec.Meta(ge=0)]
    fields: tuple[FieldDecl, ...]

    def refusal_of(self, writer: TypeDecl) -> str | None:
        """The reason why nobody can read ``writer``'s events as this type; None if somebody may."""
        return refusal_of(self, writer)


def size_of(declared: TypeDecl) -> int:
    fields = sum(len(name) + len(kind) for name, kind, _ in declared.fields)
    return len(declared.name) + 16 + fields


def check_declared(stream: str, types: Sequence[TypeDecl]) -> str:
    """The reason why these types cannot be declared in one hello; empty if they can."""
    if len(types) > MAX_DECLARED:
        return (
            f"stream {stream!r}: the hello declares {len(types)} event types; declare at most "
            f"{MAX_DECLARED}"
        )
    for declared in types:
        if declared.fingerprint != fingerprint_of(declared.name, declared.fields):
            return (
                f"stream {stream!r}: {declared.fingerprint} is not the fingerprint of "
                f"{declared.name} with these fields"
            )
    return ""


def fingerprint_of(name: str, fields: Sequence[FieldDecl]) -> int:
    """The first 8 bytes of SHA-256 over ``name(field:type,...)``, as a number >= 0."""
    text = f"{name}({','.join(f'{field}:{kind}' for field, kind, _ in fields)})"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def refusal_of(
    reader: TypeDecl, writer: TypeDecl, marked: Sequence[str] = (), fixed: Collection[str] = ()
) -> str | None:
    """The reason why events of ``writer``'s version cannot be read as ``reader``'s, or None.

    ``marked`` are the reader's types as text with marks, if they are known. The types of
    ``fixed`` fields have to be the same.
    """
    if writer.name != reader.name:
        return f"type {writer.name!r} is not {reader.name!r}"
    ours, theirs = reader.fields, writer.fields
    for (name, kind, _), its, full in zip(ours, theirs, marked or repeat(""), strict=False):
        if (name, kind) == its[:2]:
            continue
        if name != its[0]:
            rule = "fields may only be appended"
        elif name in fixed:
            rule = "the type of a key or a time may not change"
        elif takes(full or kind, its[1], marked=bool(full)):
            continue
        else:
            rule = "a reader's type has to take all values of the writer's"
        return f"{reader.name}: field {its[0]}: {its[1]} where this side has {name}: {kind}; {rule}"
    for name, kind, required in ours[len(theirs) :]:
        if required:
            return (
                f"{reader.name}: field {name}: {kind} is missing and has no default here; "
                f"give it one"
            )
    return None
