"""The kit for app authors: runs an app in memory, on a clock that the test moves.

::

    def test_a_click_is_counted():
        with AppTest(app) as test:
            test.send("clicks", Click("joe"))
            assert test.state(Count, "joe").clicks == 1

It may touch every room below it; tasks keep state in a temporary folder. Begin with ``AppTest`` (in
``app_test``), which has all that a test calls. ``world`` is what it runs in: a clock, a network and
trio runs that are pumped. ``ClusterTest`` (in ``cluster_test``) runs an app on several ``hosts`` of
a world, with ``faults``.
"""

from s4node.testing.any_order import rows_in_any_order
from s4node.testing.app_test import AppTest
from s4node.testing.cluster_test import ClusterTest
from s4node.testing.faults import Fault
from s4node.testing.seeds import check_seeds
from s4node.testing.sender import Refused
from s4node.testing.world import spend

__all__ = [
    "AppTest",
    "ClusterTest",
    "Fault",
    "Refused",
    "check_seeds",
    "rows_in_any_order",
    "spend",
]
