"""A configuration: a checked value for every key, from files and the command line.

Rules
- Mistakes are collected: one :class:`ConfigError` has all of them, files first, command line last.
- Later files override earlier ones, and the command line overrides files. An overridden value is
  checked, too.
- Keys and values are UTF-8 without NUL characters, wherever they come from, because they are passed
  to other processes, into databases, and to the system as paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from s4node.config import kinds
from s4node.config.key import ConfigKey, Pattern, Setting
from s4node.config.properties import Line, Problem, read
from s4node.config.settings import MEMBERS
from s4node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")

_SETTINGS = {key.name: key for key in MEMBERS if isinstance(key, Setting)}
_PATTERNS = tuple(key for key in MEMBERS if isinstance(key, Pattern))


class Entry(NamedTuple):
    """The value of one key, as text and parsed, and its origin."""

    name: str
    text: str
    value: Any
    origin: str


def _defaults() -> dict[str, Entry]:
    return {name: Entry(name, key.text, key.default, "default") for name, key in _SETTINGS.items()}


@dataclass(frozen=True, eq=False)
class Config:
    """A checked value for every key. Create one with :meth:`load` or :meth:`from_values`."""

    _entries: Mapping[str, Entry] = field(default_factory=_defaults)

    @classmethod
    def load(
        cls,
        paths: Sequence[Path],
        overrides: Mapping[str, str] = {},
        *,
        settings: Sequence[str] = (),
    ) -> Config:
        """Read the files in order, then ``settings``, each as ``KEY=VALUE``, and ``overrides``.

        Raises ConfigError with every mistake.
        """
        found = [line for path in paths for line in read(path)]
        written = map(_written, settings)
        return cls()._changed([*found, *written, *_given(COMMAND_LINE, overrides)])

    @classmethod
    def from_values(cls, values: Mapping[str, str]) -> Config:
        """A configuration from texts by key name; raises ConfigError with every mistake."""
        return cls().with_(values)

    def with_(self, values: Mapping[str, str]) -> Config:
        """A copy with these values changed; they are texts as in a file."""
        return self._changed(_given("code", values))

    def __getitem__(self, setting: Setting[T]) -> T:
        return cast("T", self._entries[setting.name].value)

    def matching(self, pattern: Pattern[T]) -> dict[str, T]:
        """The values of a family of keys, by the text in place of the placeholder."""
        found = ((pattern.placeholder_of(entry.name), entry.value) for entry in self._members)
        return {placeholder: value for placeholder, value in found if placeholder is not None}

    def origin(self, setting: Setting[Any] | str) -> str:
        """The origin of a value: ``file:line``, ``command line``, ``code`` or ``default``.

        Name a member of a family in full; raises KeyError if it is not set.
        """
        return self._entries[setting if isinstance(setting, str) else setting.name].origin

    def items(self) -> Iterator[Entry]:
        """Every setting in the order of the list, then the members of families as they were set."""
        return iter(self._entries.values())

    @cached_property
    def _members(self) -> list[Entry]:
        """The members of families; a setting of the list belongs to none."""
        return [entry for name, entry in self._entries.items() if name not in _SETTINGS]

    def _changed(self, lines: Sequence[Line | Problem]) -> Config:
        results = [line if isinstance(line, Problem) else _checked(line) for line in lines]
        problems = tuple(result for result in results if isinstance(result, Problem))
        if problems:
            raise ConfigError("\n".join(map(str, problems)), problems=problems)
        changes = {result.name: result for result in results if isinstance(result, Entry)}
        return Config({**self._entries, **changes})


# --- checking ------------------------------------------------------------------------------------

COMMAND_LINE = "command line"
"""The origin of values from the command line."""


def _written(setting: str) -> Line | Problem:
    name, equals, text = (part.strip() for part in setting.partition("="))
    if not equals:
        problem = f"{setting!r} has no '='; write -p KEY=VALUE"
        return Problem(COMMAND_LINE, None, None, problem)
    return Line(COMMAND_LINE, None, name, text)


def _given(file: str, values: Mapping[str, str]) -> list[Line]:
    return [Line(file, None, name.strip(), text.strip()) for name, text in values.items()]


def _checked(line: Line) -> Entry | Problem:
    if wrong := _unwritable(line.name):
        return line.problem(f"the key {line.name!r} {wrong}")
    if wrong := _unwritable(line.text):
        return line.problem(f"{line.name} = {line.text!r} {wrong}")
    key = _key_of(line.name)
    if key is None:
        return line.problem(f"unknown key {line.name!r}; {_advice(line.name)}")
    try:
        return Entry(line.name, line.text, key.parse(line.text), line.location)
    except ValueError as error:
        example = f"; write e.g. {key.text}" if key.text else ""
        text = kinds.without_password(line.text)
        return line.problem(f"{line.name} = {text!r} {error}{example}")


def _unwritable(text: str) -> str:
    """The reason why a text cannot be written to files and messages; empty if it can."""
    if not kinds.is_unicode(text):
        return "is not UTF-8; write it in UTF-8"
    return "has a NUL character; remove it" if "\0" in text else ""


def _key_of(name: str) -> ConfigKey[Any] | None:
    families = (pattern for pattern in _PATTERNS if pattern.placeholder_of(name) is not None)
    return _SETTINGS.get(name) or next(families, None)


def _advice(name: str) -> str:
    likeness, nearest = max(_guess(name, key) for key in MEMBERS)
    if likeness < 0.7:  # such keys share little more than "s4." and an ending
        return "default.s4.comm.properties lists every key"
    if nearest == name:  # copied from the documentation
        return "write a name in place of the placeholder"
    return f"did you mean {nearest!r}?"


def _guess(name: str, key: ConfigKey[Any]) -> tuple[float, str]:
    """The similarity of ``name`` and ``key``, and the key that was probably meant."""
    from difflib import SequenceMatcher  # slow to import, and only mistakes need it

    compared, fixed, meant = name, key.name, key.name
    if isinstance(key, Pattern):
        # the placeholder's text is free, so only the text around it is compared
        before, after = key.ends
        fixed = before.removesuffix(".") + after
        parts = name.split(".")
        start, end = before.count("."), len(parts) - after.count(".")
        middle = ".".join(parts[start:end])
        if kinds.is_name(middle):
            compared = ".".join(parts[:start] + parts[end:])
            meant = before + middle + after
    return SequenceMatcher(None, compared.lower(), fixed.lower()).ratio(), meant
