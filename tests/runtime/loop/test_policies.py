"""A policy that a stage cannot obey is refused at the start: stages by kinds of apps."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import running
from input_systems import dies, shared
from shared_apps import Click, Forward, OnePE

from s4node import Config, Container
from s4node.errors import ConfigError
from s4node.runtime.loop.stage_configs import StageConfigs
from s4node.stages.executors import STREAM, executor_of

POLICIES = ("block", "shed", "throttle")
LOSSLESS = ("block", "throttle")
OBEYED = {
    "without state": dict.fromkeys(("deserializer", "stream", "sender", "remoteSender"), POLICIES),
    "durable input": {
        "deserializer": LOSSLESS,
        "stream": LOSSLESS,
        "sender": ("block",),
        "remoteSender": ("block",),
    },
}
OBEYED["replayable input"] = OBEYED["durable input"]
STREAMS = {"deserializer": "clicks", "stream": "clicks", "sender": "clicks", "remoteSender": "out"}


@pytest.mark.parametrize("of_one", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stage", STREAMS)
@pytest.mark.parametrize("kind", OBEYED)
def test_a_stage_obeys_a_policy_or_the_app_does_not_start(
    kind: str, stage: str, policy: str, of_one: bool
) -> None:
    key = f"s4.{stage}.{STREAMS[stage]}.executor" if of_one else f"s4.{stage}.executor"
    if policy in OBEYED[kind][stage]:
        found = configs(kind, {key: policy})
        found.check_executors()
        assert found.settings(stage, STREAMS[stage]).executor == policy
    else:
        with pytest.raises(ConfigError, match=rf"{stage}\.{STREAMS[stage]}\.executor = block"):
            configs(kind, {key: policy}).check_executors()


@pytest.mark.parametrize("stage", STREAMS)
def test_an_executor_that_does_not_exist_is_refused_for_every_stage(stage: str) -> None:
    with pytest.raises(ConfigError, match=f"'no.such:Class' of s4.{stage}.executor"):
        configs("without state", {f"s4.{stage}.executor": "no.such:Class"}).check_executors()


@pytest.mark.parametrize("key", ["s4.sender.executor", "task.chooser.class"])
async def test_a_class_that_does_not_exist_is_found_before_an_earlier_version_stops(
    key: str,
) -> None:
    container = Container(OnePE(Forward), Config.from_values({key: "no.such:Class"}))
    with pytest.raises(ConfigError, match=key):
        await container.prepare()


@pytest.mark.parametrize("kind", OBEYED)
def test_what_is_not_set_is_refused_in_no_app(kind: str) -> None:
    found = configs(kind, {})
    found.check_executors()
    assert found.settings("sender", "clicks").executor == "throttle"


@pytest.mark.parametrize("kind", ["durable input", "replayable input"])
def test_a_lossless_input_that_throttles_makes_its_source_wait(kind: str) -> None:
    found = configs(kind, {"s4.stream.executor": "throttle"})
    assert executor_of(found.settings(STREAM, "clicks")).withholds


async def test_a_container_whose_input_would_drop_replayable_events_ends_with_the_setting(
    tmp_path: Path,
) -> None:
    shared("here").create("clicks", 1)
    values = {
        "task.inputs": "memory.clicks",
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": "here",
        "s4.state.folder": str(tmp_path),
        "s4.stream.executor": "shed",
    }
    with dies(ConfigError, match="'clicks' is replayable, but the executor 'shed' of its stream"):
        async with running(OnePE(Forward), values):
            pass


# -- set-up ---------------------------------------------------------------------------------------


def configs(kind: str, values: dict[str, str]) -> StageConfigs:
    app = OnePE(Forward)
    app.pe.out = app.create_output_stream("out", key="user", types=Click)
    if kind == "replayable input":
        app.streams["clicks"].system = "memory"
    durable = ("clicks",) if kind == "durable input" else ()
    return StageConfigs(app, Config.from_values(values), durable, keeps=kind != "without state")
