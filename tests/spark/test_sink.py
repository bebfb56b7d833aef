"""Spark's sink: rows are in the stream once, whatever is run again; mistakes are said at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_rows import (
    Maybe,
    Node,
    Row,
    check_exact,
    drawn_anew,
    dying_once,
    failing,
    failing_once,
    node_in,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOTAL = 60_000


@pytest.fixture(autouse=True)
def small_arrow_batches(spark: Any) -> Iterator[None]:
    """A partition comes in several batches."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_in(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def stream(node: Node, request: pytest.FixtureRequest) -> str:
    name = request.node.name.partition("[")[0][-100:].replace("test_", "")
    node.create(name)
    return name


def shuffled(spark: Any, total: int = TOTAL) -> Any:
    """Rows in an order that every computation draws anew, each with a random user."""
    numbers = spark.range(total).selectExpr("id as n").repartition(4, "n")
    return numbers.mapInArrow(drawn_anew, "user string, n long")


def written(rows: Any, node: Node, stream: str, **more: Any) -> Any:
    writer = rows.write.format("s4").mode("append")
    options = {"address": node.address, "stream": stream, "type": "tests.spark_rows:Row", **more}
    return writer.options(**options)


# -- faults ---------------------------------------------------------------------------------------


def test_a_dataframe_is_in_the_stream_once_and_nothing_staged_is_left(
    spark: Any, node: Node, stream: str
) -> None:
    written(shuffled(spark), node, stream).save()
    rows = node.rows(stream)
    check_exact(rows, TOTAL)
    assert node.staged == []
    known = node.ask("describe", stream=stream)
    assert (known["producers"], known["types"]) == (0, ["Row"])


@pytest.mark.parametrize("fault", [failing_once, dying_once])
def test_tasks_that_fail_midway_and_run_again_write_each_row_once(
    spark: Any, node: Node, stream: str, fault: Any
) -> None:
    before = node.count(stream)
    rows = shuffled(spark)
    written(rows.mapInArrow(fault, rows.schema), node, stream).save()
    assert node.count(stream) == before + TOTAL
    check_exact(node.rows(stream)[before:] if not before else newest(node, stream), TOTAL)


def newest(node: Node, stream: str) -> list[Row]:
    """The events of the last write of two."""
    rows = node.rows(stream)
    once = {row.n for row in rows}
    assert len(rows) == 2 * len(once)
    return [Row("", n) for n in once]


def test_a_job_that_fails_leaves_nothing_visible_and_nothing_staged(
    spark: Any, node: Node, stream: str
) -> None:
    rows = shuffled(spark)
    with pytest.raises(Exception, match="each attempt fails"):
        written(rows.mapInArrow(failing, rows.schema), node, stream).save()
    assert node.count(stream) == 0
    assert node.staged == []


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


def test_an_event_that_fits_into_no_frame_is_named(spark: Any, node: Node, stream: str) -> None:
    rows = spark.sql("select repeat('x', 2000000) as user, 1L as n")
    with pytest.raises(Exception, match="a row takes 2000"):
        written(rows, node, stream).save()
    assert node.count(stream) == 0


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
    with pytest.raises(Exception, match=r"no node answers within 1 s .*start it, check option"):
        written(shuffled(spark, 10), absent, "x", patience=1).save()


# -- streaming ------------------------------------------------------------------------------------


def test_a_query_that_is_restarted_after_its_last_commit_file_is_lost_writes_each_row_once(
    spark: Any, node: Node, stream: str, tmp_path: Path
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
            .writeStream.format("s4")
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
    check_exact(node.rows(stream), 15_000)
    (sink,) = (each for each in node.ask("sink.list")["sinks"] if each["stream"] == stream)
    assert sink["sink"].startswith("query/")
    assert not sink["open"]
