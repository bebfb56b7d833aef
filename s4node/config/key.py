"""A key of the configuration: its name, default or example, check and documentation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Literal, TypeVar

from s4node.config import kinds

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ConfigKey(Generic[T]):
    """A key in the list: a :class:`Setting`, or a :class:`Pattern` for a family of keys.

    ``text`` is a value as in a file: the default of a setting, the example of a pattern.
    """

    section: str
    name: str
    text: str
    kind: kinds.Kind[T]
    doc: str

    def parse(self, text: str) -> T:
        """The value of ``text``; raises ValueError with the mistake."""
        return self.kind.parse(text)


@dataclass(frozen=True, eq=False)
class Setting(ConfigKey[T]):
    """A key with a default: ``config[SETTING]`` always has a value.

    It ``belongs_to`` an app, and is deployed with it, unless it belongs to each node; or to each
    process, commands included; or to each machine, as a folder on its disk does.
    """

    belongs_to: Literal["app", "node", "process", "machine"] = "app"

    @property
    def default(self) -> T:
        return self.parse(self.text)


@dataclass(frozen=True, eq=False)
class Pattern(ConfigKey[T]):
    """A family of keys such as ``s4.cluster.<cluster>.address``, read by ``config.matching``."""

    example: str

    @cached_property
    def ends(self) -> tuple[str, str]:
        """The text before and after the placeholder."""
        before, _, rest = self.name.partition("<")
        return before, rest.partition(">")[2]

    def placeholder_of(self, name: str) -> str | None:
        """The text in place of the placeholder; None if ``name`` is not in this family."""
        before, after = self.ends
        if not name.startswith(before):
            return None
        middle = name[len(before) : len(name) - len(after)]
        return middle if name == before + middle + after and kinds.is_name(middle) else None
