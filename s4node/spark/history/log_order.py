"""The order of a history that is a log: by time, and within a partition also by offset.

Rules
- Nodes process a partition in the order of its offsets. If the log's clock was set back, the order
  by time is another one, and the history is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from s4node.errors import EventError
from s4node.spark.columns import OFFSET, PARTITION, TIME

OF_LOG = (TIME, PARTITION, OFFSET)
"""The columns by which a log is sorted."""


class LogOrder:
    """Follows the offsets of rows that come in the order of the columns ``order``."""

    def __init__(self, order: Sequence[str]) -> None:
        self._of_log = tuple(order[:3]) == OF_LOG
        self._reached: dict[tuple[str, int], int] = {}  # offsets, by stream and partition

    def follow(self, batch: pa.RecordBatch, streams: pa.Array) -> None:
        """Raise EventError where offsets go back; ``streams`` has the stream of each row."""
        if not self._of_log or not len(batch):
            return
        rows = pa.table(
            [streams, batch.column(PARTITION), batch.column(OFFSET), pa.array(range(len(batch)))],
            names=["stream", "partition", "offset", "place"],
        )
        keys = ["stream", "partition"]
        rows = rows.sort_by([(each, "ascending") for each in (*keys, "place")])
        first, then = rows.slice(0, len(rows) - 1), rows.slice(1)
        back = pc.less(then["offset"], first["offset"])
        for key in keys:
            back = pc.and_(back, pc.equal(then[key], first[key]))
        went_back = pc.any(back).as_py()
        ends = rows.group_by(keys).aggregate([("offset", "min"), ("offset", "max")])
        for row in ends.to_pylist():
            place = row["stream"], row["partition"]
            went_back = went_back or row["offset_min"] < self._reached.get(place, 0)
            self._reached[place] = row["offset_max"]
        if went_back:
            raise EventError(
                "the log's clock was set back: its events have another order by time than by "
                "offset. Bootstrap in the order of the offsets: order=['_offset', '_partition']"
            )
