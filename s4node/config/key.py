"""A key of the configuration: its name, default or example, check and documentation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from s4node.config import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ConfigKey(Generic[T]):
    """A key in the list: a :class:`Setting`, a :class:`Pattern` for a family of keys, or a
    :class:`StageKey`.

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

    @property
    def members(self) -> Iterable[ConfigKey[T]]:
        """The settings and patterns that this key stands for: itself, unless it is a table's."""
        return (self,)


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
        before, _, rest = self.name.partition("<")
        return before, rest.partition(">")[2]

    def placeholder_of(self, name: str) -> str | None:
        """The text in place of the placeholder; None if ``name`` is not in this family."""
        before, after = self.ends
        if not name.startswith(before):
            return None
        middle = name[len(before) : len(name) - len(after)]
        return middle if name == before + middle + after and kinds.is_name(middle) else None


@dataclass(frozen=True, eq=False)
class ClientOption(Pattern[T]):
    """A family whose keys end with an option of another program's, which may have dots:
    ``systems.<system>.consumer.<option>``. ``matching`` has it as ``system.option``."""

    def placeholder_of(self, name: str) -> str | None:
        before, after = self.ends
        between = after.partition("<")[0]
        system, _, option = name.removeprefix(before).partition(between)
        found = name == before + system + between + option and kinds.is_name(system)
        return f"{system}.{option}" if found and option else None


class OfStage(NamedTuple, Generic[T]):
    """A property of one stage: the setting for all streams, and the pattern for one of them."""

    setting: Setting[T]
    pattern: Pattern[T]


@dataclass(frozen=True, eq=False)
class StageKey(ConfigKey[T]):
    """A property of stages: ``s4.<stage>.executor``, and ``s4.<stage>.<stream>.executor`` for one
    stream. ``defaults`` are by stage; ``text`` is an example."""

    defaults: Mapping[str, str]

    @cached_property
    def of(self) -> Mapping[str, OfStage[T]]:
        return {stage: self._of(stage, text) for stage, text in self.defaults.items()}

    @property
    def members(self) -> Iterable[ConfigKey[T]]:
        return [key for of_stage in self.of.values() for key in of_stage]

    def _of(self, stage: str, text: str) -> OfStage[T]:
        last = self.name.rpartition(".")[2]
        name, one = f"s4.{stage}.{last}", f"s4.{stage}.<stream>.{last}"
        example = f"s4.{stage}.clicks.{last}"
        return OfStage(
            Setting(self.section, name, text, self.kind, self.doc),
            Pattern(self.section, one, text, self.kind, self.doc, example),
        )
