"""Spark's sink: rows are in the stream once, whatever is run again; mistakes are said at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from spark_nodes import running_node
from spark_rows import (
    Maybe,
    Node,
    check_exact,
    drawn_anew,
    failing,
    going_on,
    killing_process,
    node_in,
    until,
)

from s4node.spark import register
from tests.spark_sinks import Numbered, Staged

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TOTAL = 60_000


@pytest.fixture(autouse=True)
def small_arrow_batches(spark: Any) -> Iterator[None]:
    """A partition comes in several batches."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.fixture(scope="module")
def sinks(spark: Any) -> None:
    """Sinks amid whose rows something happens."""
    for each in (Staged, Numbered):
        spark.dataSource.register(each)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_in(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def stream(node: Node, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_"))[-100:]
    node.create(name)
    return name


def shuffled(spark: Any, total: int = TOTAL) -> Any:
    """Rows in an order that every computation draws anew, each with a random user."""
    numbers = spark.range(total).selectExpr("id as n").repartition(4, "n")
    return numbers.mapInArrow(drawn_anew, "user string, n long")


def written(rows: Any, node: Node, stream: str, sink: str = "s4", **more: Any) -> Any:
    writer = rows.write.format(sink).mode("append")
    options = {"address": node.address, "stream": stream, "type": "tests.spark_rows:Row", **more}
    return writer.options(**{name: value for name, value in options.items() if value is not None})


# -- faults ---------------------------------------------------------------------------------------


def test_a_dataframe_is_in_the_stream_once_and_nothing_staged_is_left(
    spark: Any, node: Node, stream: str
) -> None:
    written(shuffled(spark), node, stream).save()
    rows = node.rows(stream)
    check_exact(rows, TOTAL)
    assert node.staged == []
    assert stream not in [each["stream"] for each in node.ask("sink.list")["sinks"]]
    known = node.ask("describe", stream=stream)
    assert (known["producers"], known["types"]) == (0, ["Row"])


def test_sql_inserts_rows_into_a_view_with_the_columns_of_the_events_and_not_into_a_table(
    spark: Any, node: Node, stream: str
) -> None:
    options = f"(address '{node.address}', stream '{stream}', type 'tests.spark_rows:Row')"
    spark.sql(f"CREATE TEMPORARY VIEW inserted (user STRING, n BIGINT) USING s4 OPTIONS {options}")
    spark.sql("INSERT INTO inserted SELECT 'u', id FROM range(100)")
    spark.sql("INSERT INTO inserted (n, user) SELECT id, 'u' FROM range(100, 200)")
    check_exact(node.rows(stream), 200)
    assert spark.sql("SELECT sum(n) FROM inserted").first()[0] == sum(range(200))
    with pytest.raises(PySparkException, match=r"no options of a table.* CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE inserted_table USING s4 OPTIONS {options}")


def check(node: Node, stream: str, sink: str, total: int) -> None:
    """Each row is there once, unless the sink recognises rows by their numbers."""
    if sink == "Numbered":
        with pytest.raises(AssertionError, match="rows doubled"):
            check_exact(node.rows(stream), total)
    else:
        check_exact(node.rows(stream), total)


@pytest.mark.usefixtures("sinks")
@pytest.mark.parametrize(
    ("fault", "sink"),
    [("failing_one", "Staged"), ("failing_once", "Numbered"), ("dying_once", "Staged")],
)
def test_tasks_that_fail_midway_and_run_again_write_each_row_once_unless_rows_are_numbered(
    spark: Any, node: Node, stream: str, fault: str, sink: str
) -> None:
    written(shuffled(spark), node, stream, sink, fault=fault).save()
    check(node, stream, sink, TOTAL)


def test_a_job_that_fails_leaves_nothing_visible_and_nothing_staged(
    spark: Any, node: Node, stream: str
) -> None:
    rows = shuffled(spark)
    with pytest.raises(Exception, match="each attempt fails"):
        written(rows.mapInArrow(failing, rows.schema), node, stream).save()
    assert node.count(stream) == 0
    until(lambda: node.staged == [], "nothing is staged once no attempt is under way")


def test_a_job_of_a_name_is_written_once_ever(spark: Any, node: Node, stream: str) -> None:
    for _ in range(2):
        written(shuffled(spark), node, stream, job="nightly").save()
    check_exact(node.rows(stream), TOTAL)


# -- mistakes -------------------------------------------------------------------------------------


def said(error: pytest.ExceptionInfo[Exception]) -> str:
    return str(error.value)


def test_all_columns_that_do_not_fit_are_named_before_anything_is_written(
    spark: Any, node: Node, stream: str
) -> None:
    rows = spark.sql("select 1 as user, 'x' as m")
    with pytest.raises(Exception, match="not events of Row") as error:
        written(rows, node, stream).save()
    text = said(error)
    assert "column 'user' is int, not str" in text
    assert "there is no column 'n' for field n: int" in text
    assert "there is no field for m" in text
    assert "Traceback" not in text


def test_overwriting_and_unknown_options_are_refused(spark: Any, node: Node, stream: str) -> None:
    rows = shuffled(spark, 10)
    with pytest.raises(Exception, match="does not overwrite: a stream only grows"):
        written(rows, node, stream).mode("overwrite").save()
    with pytest.raises(Exception, match="there is no option patients") as error:
        written(rows, node, stream, patients="3", delivery="twice", address="here").save()
    assert "option delivery: 'twice' is" in said(error)
    assert "'here' is not an address" in said(error)


def test_nulls_are_refused_unless_the_class_takes_them_and_never_as_a_key(
    spark: Any, node: Node, stream: str
) -> None:
    nulls = spark.sql("select 'u' as user, cast(null as bigint) as n")
    with pytest.raises(Exception, match="column 'n' has 1 nulls in 1 rows"):
        written(nulls, node, stream).save()
    no_key = spark.sql("select cast(null as string) as user, 1L as n")
    with pytest.raises(Exception, match="is the key of the stream"):
        written(no_key, node, stream, type="tests.spark_rows:Maybe").save()
    assert node.count(stream) == 0
    written(nulls, node, stream, type="tests.spark_rows:Maybe").save()
    assert node.rows(stream, Maybe) == [Maybe("u", None)]


def test_a_key_that_is_too_long_is_named(spark: Any, node: Node, stream: str) -> None:
    rows = spark.sql("select repeat('x', 2000000) as user, 1L as n")
    with pytest.raises(Exception, match=r"a row has no key for user: .* 2000000 characters"):
        written(rows, node, stream).save()
    assert node.count(stream) == 0


def test_an_event_that_is_too_large_for_a_frame_is_named(
    spark: Any, node: Node, stream: str
) -> None:
    wide = spark.sql("select concat('u', id) as user, repeat('x', 2000000) as text from range(3)")
    rows = wide.coalesce(1)  # else Spark may begin an attempt of another task after the abort
    with pytest.raises(Exception, match=r"a row takes 2000\d\d\d bytes as a Wide") as error:
        written(rows, node, stream, type="tests.spark_rows:Wide").save()
    assert "write smaller rows, or raise s4.listener.maxFrameBytes of the node" in said(error)
    assert "Traceback" not in said(error)
    assert node.count(stream) == 0
    until(lambda: node.staged == [], "nothing is staged once no attempt is under way")


def test_a_stream_that_is_missing_is_created_if_the_options_say_how(spark: Any, node: Node) -> None:
    rows = shuffled(spark, 100)
    with pytest.raises(Exception, match="s4 log create absent --partitions 4") as error:
        written(rows, node, "absent").save()
    assert "Create it" in said(error)
    written(rows, node, "absent", partitions=3, key="user").save()
    assert len(node.ask("describe", stream="absent")["partitions"]) == 3
    check_exact(node.rows("absent"), 100)


def test_a_node_that_is_down_is_named_after_the_patience(
    spark: Any, node: Node, tmp_path: Path
) -> None:
    absent = Node(tmp_path)
    with pytest.raises(Exception, match=r"no node answers within 1 s .*start it, check its"):
        written(shuffled(spark, 10), absent, "x", patience=1).save()


def test_a_node_that_goes_away_midway_ends_the_write_and_nothing_is_visible(
    spark: Any, tmp_path: Path
) -> None:
    with node_in(tmp_path) as node:
        node.create("clicks")
        assert node.process is not None
        rows = shuffled(spark)
        killed = rows.mapInArrow(partial(killing_process, node.process.pid), rows.schema)
        with pytest.raises(PySparkException, match=r"no node answers within 1 s .*start it, check"):
            written(killed, node, "clicks", patience=1).save()
        node.stop()
        node.start()
        assert node.count("clicks") == 0


def test_a_task_that_fails_says_so_before_its_rows_have_come_to_their_end(
    spark: Any, node: Node, stream: str, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    rows = spark.range(1).mapInArrow(partial(going_on, end), "user string, n long")
    with pytest.raises(PySparkException, match="column 'user' has 1000 nulls"):
        written(rows, node, stream).save()
    assert not end.exists()


def test_events_of_another_class_of_that_name_are_refused(
    spark: Any, node: Node, stream: str
) -> None:
    written(shuffled(spark, 10), node, stream).save()
    rows = shuffled(spark, 10).selectExpr("user", "cast(n as string) as n")
    with pytest.raises(Exception, match=r"has events of another Row: .* Write the columns that it"):
        written(rows, node, stream, type="tests.spark.other_row:Row").save()
    check_exact(node.rows(stream), 10)


def test_a_class_that_cannot_be_imported_is_to_be_shipped(
    spark: Any, node: Node, stream: str
) -> None:
    with pytest.raises(Exception, match="ship its module to Spark's driver and executors") as error:
        written(shuffled(spark, 10), node, stream, type="absent:Row").save()
    assert "Traceback" not in said(error)


# -- where rows go ------------------------------------------------------------------------------


def test_columns_have_other_names_than_fields_if_an_option_says_so(
    spark: Any, node: Node, stream: str
) -> None:
    rows = shuffled(spark, 100).selectExpr("user as user_id", "n as number")
    written(rows, node, stream, columns="user:user_id, n:number").save()
    check_exact(node.rows(stream), 100)


def test_the_first_address_that_is_reached_is_taken(spark: Any, node: Node, stream: str) -> None:
    addresses = f"tcp://no-such-host.invalid:1, {Node(node.folder).address},{node.address}"
    written(shuffled(spark, 100), node, stream, address=addresses).save()
    check_exact(node.rows(stream), 100)


def test_a_cluster_means_its_node_with_the_log(spark: Any, node: Node, stream: str) -> None:
    folder = node.folder / "cluster"
    by_name = {"cluster": "demo", "coordination": folder, "address": None}
    written(shuffled(spark, 100), node, stream, **by_name).save()
    check_exact(node.rows(stream), 100)
    with pytest.raises(Exception, match="no node of cluster 'other' is running in") as error:
        written(shuffled(spark, 10), node, stream, **{**by_name, "cluster": "other"}).save()
    assert "start one with: s4 node other, or name the nodes' folder" in said(error)
    with pytest.raises(Exception, match="options address and cluster say the same"):
        written(shuffled(spark, 10), node, stream, cluster="demo").save()


def test_an_app_s_input_takes_rows_at_least_once_and_only_if_that_is_accepted(
    spark: Any, tmp_path: Path
) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    with running_node(tmp_path / "app", target=str(app)) as live:
        options = {"address": live.address, "stream": "rows", "type": "tests.spark_rows:Row"}
        rows = shuffled(spark, 1000).write.format("s4").mode("append").options(**options)
        with pytest.raises(Exception, match="'rows' is an app's input, where rows that Spark"):
            rows.save()
        rows.option("delivery", "at-least-once").save()
        until(lambda: counted(tmp_path / "app") == 1000, "the app has counted all rows")


APP = """
from pathlib import Path

from s4node import App, Event, ProcessingElement


class Row(Event):
    user: str
    n: int


class Count(ProcessingElement):
    def on_event(self, row: Row) -> None:
        with Path(__file__).with_name("seen").open("a") as file:
            file.write(f"{row.n}\\n")


app = App("counting")
app.create_input_stream("rows", app.create_pe(Count), key="user", types=Row)
"""


def counted(folder: Path) -> int:
    """The number of different rows that the app has got."""
    seen = folder.parent / "seen"
    return len(set(seen.read_text().split())) if seen.exists() else 0


def test_the_format_can_be_registered_where_spark_does_not_find_it(
    spark: Any, node: Node, stream: str
) -> None:
    register(spark)
    written(shuffled(spark, 100), node, stream).save()
    check_exact(node.rows(stream), 100)


# -- streaming ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sinks")
@pytest.mark.parametrize("sink", ["s4", "Numbered"])
def test_a_query_restarted_without_its_last_commit_file_writes_rows_once_unless_numbered(
    spark: Any, node: Node, stream: str, tmp_path: Path, sink: str
) -> None:
    source = tmp_path / "source"
    for number in range(3):
        spark.range(number * 5000, number * 5000 + 5000).write.parquet(str(source / str(number)))
    for cores in ("4", "3"):
        query = (
            spark.readStream.schema("id long")
            .option("maxFilesPerTrigger", 2)
            .parquet(f"{source}/*")
            .selectExpr("id as n")
            .repartition(int(cores))
            .mapInArrow(drawn_anew, "user string, n long")
            .writeStream.format(sink)
            .options(address=node.address, stream=stream, type="tests.spark_rows:Row")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert query.exception() is None
        commits = sorted(
            (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
        )
        assert len(commits) > 1
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    check(node, stream, sink, 15_000)
    for each in node.ask("sink.list")["sinks"]:
        if each["stream"] == stream:
            assert each["sink"].startswith("query/")
            assert not each["open"]


def test_two_queries_write_to_one_stream_at_the_same_time(
    spark: Any, node: Node, stream: str, tmp_path: Path
) -> None:
    queries = []
    for name, first in (("one", 0), ("two", 5000)):
        spark.range(first, first + 5000).write.parquet(str(tmp_path / name / "0"))
        queries.append(
            spark.readStream.schema("id long")
            .parquet(f"{tmp_path / name}/*")
            .selectExpr("id as n")
            .mapInArrow(drawn_anew, "user string, n long")
            .writeStream.format("s4")
            .options(address=node.address, stream=stream, type="tests.spark_rows:Row")
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
    for query in queries:
        assert query.awaitTermination(300)
        assert query.exception() is None
    check_exact(node.rows(stream), 10_000)


def test_what_does_not_fit_ends_a_query_with_all_mistakes_at_once(
    spark: Any, node: Node, stream: str, tmp_path: Path
) -> None:
    def begun(**more: Any) -> str:
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 5)
            .load()
            .selectExpr("value as user", "'x' as m")
            .writeStream.format("s4")
            .options(address=node.address, stream=stream, type="tests.spark_rows:Row", **more)
            .option("checkpointLocation", str(tmp_path / str(len(more))))
            .start()
        )
        with pytest.raises(Exception, match=r"option job|not events") as error:
            query.awaitTermination(300)
        return said(error)

    text = begun()
    assert "column 'user' is bigint, not str" in text
    assert "there is no column 'n' for field n: int" in text
    assert "Traceback" not in text
    assert "option job is for df.write: a query has its id in the checkpoint" in begun(job="mine")
