"""The promises of the task model: tasks from partitions, and what progress depends on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.offsets.system import SystemStreamPartition as Ssp
from s4node.runtime.inputs.job_model import AppKind, JobModel, model_of


def test_twelve_and_fourteen_partitions_are_tasks_0_to_13() -> None:
    made = model({}, {"PageViewEvent": 12, "ServiceMetricEvent": 14})
    assert [(task.index, task.name) for task in made.tasks] == [
        (number, f"Partition {number}") for number in range(14)
    ]
    assert made.tasks[11].ssps == (
        Ssp("log", "PageViewEvent", 11),
        Ssp("log", "ServiceMetricEvent", 11),
    )
    assert made.tasks[12].ssps == (Ssp("log", "ServiceMetricEvent", 12),)


def test_the_cluster_s_partitions_are_the_least_number_of_tasks() -> None:
    made = model({"s4.cluster.partitions": "6"}, {"A": 4})
    assert [len(task.ssps) for task in made.tasks] == [1, 1, 1, 1, 0, 0]
    assert model({"s4.cluster.partitions": "3"}, {"A": 4}).facts.tasks == 4
    assert model({"s4.cluster.partitions": "3"}, {}).facts.tasks == 3


def test_a_partition_that_is_input_and_broadcast_is_broadcast() -> None:
    made = model({"task.broadcast.inputs": "log.A#0"}, {"A": 2})
    assert made.tasks[0].ssps == (Ssp("log", "A", 0),)
    assert made.tasks[1].ssps == (Ssp("log", "A", 0), Ssp("log", "A", 1))
    by_ssp = model({GROUPER: "by-ssp", "task.broadcast.inputs": "log.A#0"}, {"A": 3})
    assert [task.name for task in by_ssp.tasks] == ["log.A[1]", "log.A[2]"]


def test_a_broadcast_range_beyond_the_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"log\.rules has 2 partitions; write at most #1"):
        model({"task.broadcast.inputs": "log.rules#2"}, {"A": 2}, rules=2)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (AppKind(keyed=["b", "a"]), "keyed streams (a, b): a key belongs to a partition number"),
        (AppKind(internal=["x"]), "streams of its own (x): they have one partition a task"),
        (AppKind(live=["y"]), "live inputs (y): their producers choose the partition"),
    ],
)
def test_other_groupers_are_refused_where_tasks_are_found_by_partition_number(
    kind: AppKind, why: str
) -> None:
    assert model({}, {"A": 2}, kind).facts.tasks == 2
    with pytest.raises(ConfigError) as caught:
        model({GROUPER: "by-ssp"}, {"A": 2}, kind)
    assert str(caught.value) == (
        f"{GROUPER} = by-ssp does not fit an app with {why}; leave it at by-partition"
    )


def test_a_grouper_that_makes_no_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="makes no task, because all inputs of the app"):
        model({GROUPER: "by-ssp", "task.broadcast.inputs": "log.rules#0"}, {}, rules=1)


def test_more_tasks_than_an_app_can_have_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="the inputs make 4097 tasks, but an app has at most 4096"
    ):
        model({}, {"A": 4097})


def test_the_facts_tell_what_progress_depends_on() -> None:
    values = {"task.broadcast.inputs": "log.rules#0, log.half#1"}
    made = model(values, {"A": 4, "half": 2}, AppKind(keyed=["A", "live"]), rules=1)
    assert made.facts.tasks == 4
    assert made.facts.grouper == "by-partition"
    assert made.facts.counts == {"log.A": 4, "log.half": 2, "log.rules": 1}
    assert made.facts.rerouted == {"log.A", "log.rules"}  # no key leads to a partition of rules


def test_a_job_that_goes_on_sees_what_became_of_a_stream_that_is_only_broadcast() -> None:
    values = {"task.broadcast.inputs": "log.rules#0"}
    before = model(values, {"A": 2}, rules=2).facts
    assert model(values, {"A": 2}, rules=3).facts.problems(before) == []
    assert model(values, {"A": 2}, rules=1).facts.problems(before) == [
        (
            "log.rules had 2 partitions and has 1, so progress in the others would be lost; "
            "give it 2 partitions again"
        )
    ]


@given(
    st.dictionaries(st.sampled_from(["a", "b", "a.b", "c"]), st.integers(1, 30), max_size=4),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_every_partition_has_a_task_and_broadcast_ones_have_all(
    counts: dict[str, int], least: int, broadcast: int
) -> None:
    every = {("log", stream): count for stream, count in counts.items()} | {("log", "rules"): 3}
    values = {"s4.cluster.partitions": str(least)}
    if broadcast:
        values["task.broadcast.inputs"] = f"log.rules#[0-{broadcast - 1}]"
    made = model_of(
        Config.from_values(values), TASKS, [("log", stream) for stream in counts], every
    )
    assert made.facts.tasks == len(made.tasks) == max([least, *counts.values()])
    assert [task.index for task in made.tasks] == list(range(len(made.tasks)))
    shared = {Ssp("log", "rules", number) for number in range(broadcast)}
    own = [ssp for task in made.tasks for ssp in task.ssps if ssp not in shared]
    assert sorted(own) == sorted(
        Ssp("log", s, n) for s, count in counts.items() for n in range(count)
    )
    assert all(shared <= set(task.ssps) for task in made.tasks)
    assert all(
        ssp.partition == task.index for task in made.tasks for ssp in task.ssps if ssp in own
    )


# -- set-up ---------------------------------------------------------------------------------------


GROUPER = "job.systemstreampartition.grouper.factory"
TASKS = AppKind()


def model(
    values: dict[str, str], counts: dict[str, int], kind: AppKind = TASKS, **others: int
) -> JobModel:
    """The model of an app that reads ``counts``; ``others`` are there, too."""
    every = {("log", stream): count for stream, count in (counts | others).items()}
    return model_of(Config.from_values(values), kind, [("log", stream) for stream in counts], every)
