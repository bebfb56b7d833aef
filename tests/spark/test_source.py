"""Streams of a log as DataFrames: every event once, in batches and in streaming queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from spark_nodes import Click, Node, running_node, to_the_end

from s4node import Event

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

CLICKS = [Click(f"user{n % 7}", n, None if n % 3 else f"page{n}") for n in range(1000)]


class Visit(Event):
    user: str
    at: float
    tags: list[str] = []  # noqa: RUF012 - msgspec copies it


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as found:
        found.create("clicks", 3, key="user")
        found.append("clicks", CLICKS, key="user")
        yield found


def frame(spark: SparkSession, node: Node, stream: str = "clicks", **options: Any) -> DataFrame:
    reader = spark.read.format("s4").option("address", node.address).option("stream", stream)
    return reader.options(**options).load()


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.select("user", "number", "page").collect())


EXPECTED = sorted(((c.user, c.number, c.page) for c in CLICKS), key=lambda row: row[:2])


def test_a_batch_has_every_event_of_the_stream_once(spark: SparkSession, node: Node) -> None:
    df = frame(spark, node)

    assert rows(df) == EXPECTED
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in df.schema.fields] == [
        ("user", "string", False),
        ("number", "bigint", False),
        ("page", "string", True),
        ("_partition", "int", False),
        ("_offset", "bigint", False),
        ("_time", "timestamp", False),
    ]


def test_offsets_have_no_holes_and_are_in_the_order_of_each_key(
    spark: SparkSession, node: Node
) -> None:
    found = frame(spark, node).orderBy("_partition", "_offset").collect()

    by_partition: dict[int, list[int]] = {}
    by_user: dict[str, list[int]] = {}
    for row in found:
        by_partition.setdefault(row["_partition"], []).append(row["_offset"])
        by_user.setdefault(row["user"], []).append(row["number"])
    assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())
    assert all(numbers == sorted(numbers) for numbers in by_user.values())


def test_a_partition_that_a_start_does_not_name_begins_at_its_oldest_event(
    spark: SparkSession, node: Node
) -> None:
    whole = frame(spark, node).where("_partition != 0 or _offset >= 5")
    assert rows(frame(spark, node, start='{"0": 5}')) == rows(whole)


def test_a_column_of_a_schema_that_no_event_has_is_refused_without_a_traceback(
    spark: SparkSession, node: Node
) -> None:
    reader = spark.read.format("s4").options(address=node.address, stream="clicks")
    with pytest.raises(PySparkException, match="the schema has columns usr, and Click") as error:
        reader.schema("usr string, number bigint").load().collect()
    assert "Traceback" not in str(error.value)
    with pytest.raises(PySparkException, match=r"Click.user are not of the column's") as error:
        reader.schema("user bigint").load().collect()
    assert "Traceback" not in str(error.value)


def test_a_start_and_an_end_cut_out_what_is_between(spark: SparkSession, node: Node) -> None:
    whole = frame(spark, node)
    part = frame(spark, node, start='{"0": 10, "1": 5}', end='{"0": 20, "1": 8, "2": 0}')

    expected = whole.where(
        "(_partition = 0 and _offset >= 10 and _offset < 20) or "
        "(_partition = 1 and _offset >= 5 and _offset < 8)"
    )
    assert rows(part) == rows(expected)
    assert part.count() == 13
    assert frame(spark, node, start="upcoming").count() == 0
    assert frame(spark, node, start="timestamp 2100-01-01T00:00:00Z").count() == 0


def test_chosen_columns_are_read_alone(spark: SparkSession, node: Node) -> None:
    df = frame(spark, node, columns="_offset, number")

    assert df.columns == ["_offset", "number"]
    assert df.selectExpr("sum(number)").first()[0] == sum(range(1000))  # type: ignore[index]


def test_a_stream_of_two_types_is_read_by_type(spark: SparkSession, node: Node) -> None:
    node.create("mixed")
    visits = [Visit("a", 1.5, ["x", "y"]), Visit("b", 2.0)]
    node.append("mixed", [Click("a", 1), visits[0], Click("b", 2), visits[1], Click("c", 3)])

    found = frame(spark, node, "mixed", type="Visit").orderBy("_offset").collect()
    assert [tuple(row)[:5] for row in found] == [
        ("a", 1.5, ["x", "y"], 0, 1),
        ("b", 2.0, [], 0, 3),
    ]
    with pytest.raises(PySparkException, match="types Click, Visit; say which to read"):
        frame(spark, node, "mixed")


def test_a_query_goes_on_where_its_checkpoint_is(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    node.create("growing", 2)
    node.append("growing", CLICKS[:500])

    def run(**options: Any) -> list[int]:
        query = to_the_end(
            spark.readStream.format("s4")
            .option("address", node.address)
            .option("stream", "growing")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        return [int(each["numInputRows"]) for each in query.recentProgress]

    assert run(maxEventsPerTrigger=200) == [200, 200, 100]
    node.append("growing", CLICKS[500:])
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    last.unlink()  # the driver died before Spark noted that the batch was done
    (tmp_path / "checkpoint" / "commits" / f".{last.name}.crc").unlink()
    run()
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == EXPECTED


def test_a_checkpoint_of_another_stream_of_that_name_is_refused(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("s4")
        .option("address", node.address)
        .option("stream", "clicks")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
    )
    to_the_end(query)
    with running_node(tmp_path / "other") as other:
        other.create("clicks", 3, key="user")
        other.append("clicks", CLICKS[:300], key="user")
        again = (
            spark.readStream.format("s4")
            .option("address", other.address)
            .option("stream", "clicks")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
        )
        with pytest.raises(PySparkException, match=r"the events of clicks\[\d\] from offset"):
            to_the_end(again)


def test_a_query_that_is_restarted_with_other_columns_is_refused(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    def run(columns: str) -> None:
        to_the_end(
            spark.readStream.format("s4")
            .option("address", node.address)
            .option("stream", "clicks")
            .option("columns", columns)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
        )

    run("user, number")
    with pytest.raises(PySparkException, match="was written with the columns user string, number"):
        run("user")


def test_the_first_address_that_is_reached_is_read_from(spark: SparkSession, node: Node) -> None:
    assert rows(frame(spark, node, address=f"tcp://127.0.0.1:1,{node.address}")) == EXPECTED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "no-such"}, "no stream 'no-such'"),
        ({"start": "yesterday"}, "is not a start; write oldest, upcoming"),
        ({"columns": "user,nonsense"}, "option columns names nonsense, and the stream has user"),
        ({"strat": "oldest"}, "does not know the option 'strat'"),
        ({"type": "no.such:Class"}, "cannot be imported"),
        ({"address": "tcp://127.0.0.1:1", "patience": "0.5"}, "no node answers within 0.5 s"),
        ({"address": "here", "stream": ""}, "'here' is not an address; .* stream is missing"),
        ({"end": "offset 5000"}, "has no offset 5000: it has 0 to"),
        ({"start": '{"3": 0}'}, "'clicks' has no partition 3: it has 0 to 2; name these in"),
        ({"end": '{"0": 5000}'}, r"clicks\[0\] has no offset 5000: it has 0 to"),
        ({"patience": "inf"}, "option patience='inf' is not a number above 0 and below 1e"),
    ],
)
def test_bad_options_are_refused_with_what_to_do(
    spark: SparkSession, node: Node, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("s4").options(
            **{"address": node.address, "stream": "clicks", **options}
        ).load().count()
