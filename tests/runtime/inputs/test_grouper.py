"""The promises of the groupers: every partition in one task, the same ones whoever asks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.offsets.system import SystemStreamPartition as Ssp
from s4node.runtime.inputs.grouper import grouped

HERE = __name__


def test_by_partition_twelve_and_fourteen_partitions_are_fourteen_tasks() -> None:
    groups = grouped("by-partition", PAGES + METRICS)
    assert list(groups) == [f"Partition {number}" for number in range(14)]
    for number in range(12):
        assert groups[f"Partition {number}"] == (PAGES[number], METRICS[number])
    for number in (12, 13):
        assert groups[f"Partition {number}"] == (METRICS[number],)


def test_names_of_streams_may_have_dots() -> None:
    dotted = [*partitions("a.7.b", 2), *partitions("a", 2), *partitions("a", 1, "other")]
    assert grouped("by-ssp", dotted) == {
        "log.a[0]": (Ssp("log", "a", 0),),
        "log.a[1]": (Ssp("log", "a", 1),),
        "log.a.7.b[0]": (Ssp("log", "a.7.b", 0),),
        "log.a.7.b[1]": (Ssp("log", "a.7.b", 1),),
        "other.a[0]": (Ssp("other", "a", 0),),
    }
    assert set(grouped("by-partition", dotted)["Partition 1"]) == {
        Ssp("log", "a", 1),
        Ssp("log", "a.7.b", 1),
    }


ssps = st.frozensets(
    st.builds(
        Ssp,
        st.sampled_from(["log", "memory"]),
        st.sampled_from(["a", "a.b", "a.b.1", "b"]),
        st.integers(0, 20),
    ),
    max_size=40,
)


@given(ssps, st.sampled_from(["by-partition", "by-ssp", f"{HERE}:Pairs"]), st.randoms())
def test_every_partition_is_in_one_task_whatever_the_order_it_is_told_in(
    given_ssps: frozenset[Ssp], name: str, random: object
) -> None:
    shuffled = list(given_ssps)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    groups = grouped(name, shuffled)
    inside = [ssp for members in groups.values() for ssp in members]
    assert sorted(inside) == sorted(given_ssps)
    assert list(groups.items()) == list(grouped(name, sorted(given_ssps)).items())


# --- one's own -----------------------------------------------------------------------------------


class Pairs:
    """Two partitions of a stream a task; the mapping's own order does not matter."""

    def group(self, ssps: Sequence[Ssp]) -> dict[str, set[Ssp]]:
        groups: dict[str, set[Ssp]] = {}
        for ssp in reversed(ssps):
            name = f"{ssp.system} {ssp.stream} {ssp.partition // 2}"
            groups.setdefault(name, set()).add(ssp)
        return groups


class Losing:
    def group(self, ssps: Sequence[Ssp]) -> dict[str, list[Ssp]]:
        return {"most": list(ssps[1:])}


class Doubling:
    def group(self, ssps: Sequence[Ssp]) -> dict[str, list[Ssp]]:
        return {"all": list(ssps), "again": [ssps[-1]]}


class Inventing:
    def group(self, ssps: Sequence[Ssp]) -> dict[str, list[Ssp]]:
        return {"all": [*ssps, Ssp("log", "other", 7)]}


class Hollow:
    def group(self, ssps: Sequence[Ssp]) -> dict[str, list[Ssp]]:
        return {"all": list(ssps), "": [], "none": []}


class Raising:
    def group(self, ssps: Sequence[Ssp]) -> dict[str, list[Ssp]]:
        raise RuntimeError("no idea")


class Wordless:
    def group(self, ssps: Sequence[Ssp]) -> object:
        return 5


class NoGrouper:
    pass


class Unmade:
    def __init__(self) -> None:
        raise RuntimeError("not today")


def test_a_custom_grouper_is_named_in_the_configuration() -> None:
    config = Config.from_values({"job.systemstreampartition.grouper.factory": f"{HERE}:Pairs"})
    groups = grouped(config[settings.GROUPER], partitions("a", 21))
    assert list(groups) == [f"log a {number}" for number in range(11)]  # 10 after 9, not after 1
    assert groups["log a 10"] == (Ssp("log", "a", 20),)


@pytest.mark.parametrize(
    ("own", "what"),
    [
        ("Losing", "loses log.a[0]; put it in a task"),
        ("Doubling", "puts log.a[1] in 'all' and 'again'; put it in one task"),
        ("Inventing", "puts log.other[7], not an input, in task 'all'; leave it out"),
        ("Hollow", "calls a task ''; give it a printable name"),
        ("Hollow", "gives task 'none' nothing to read; leave it out"),
        ("Raising", "raised RuntimeError: no idea; it must return a mapping"),
        ("Wordless", "raised AttributeError: 'int' object has no attribute 'items'"),
        ("NoGrouper", "has no group; it needs group"),
        ("Unmade", "cannot be created: RuntimeError: not today; it is called with nothing"),
        ("Missing", "cannot be imported: AttributeError"),
    ],
)
def test_a_custom_grouper_that_breaks_the_contract_is_refused(own: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grouped(f"{HERE}:{own}", partitions("a", 2))
    place = f"grouper '{HERE}:{own}' of job.systemstreampartition.grouper.factory {what}"
    assert place in str(caught.value)


def test_an_unknown_grouper_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is neither by-partition, by-ssp nor package\.module"):
        Config.from_values({"job.systemstreampartition.grouper.factory": "GroupByPartitionFactory"})


# -- set-up ---------------------------------------------------------------------------------------


def partitions(stream: str, count: int, system: str = "log") -> list[Ssp]:
    return [Ssp(system, stream, number) for number in range(count)]


PAGES = partitions("PageViewEvent", 12)
METRICS = partitions("ServiceMetricEvent", 14)
