"""The kit for app authors: runs an app in memory, on a clock that the test moves.

::

    from s4node.testing import AppTest

    def test_a_click_is_counted():
        with AppTest(app) as test:
            test.send("clicks", Click("joe"))
            assert test.state(Count, "joe").clicks == 1

It may touch every room below it; tasks keep state in a temporary folder. Begin with ``AppTest`` (in
``app_test``), which has all that a test calls; ``runtime`` has its container, ``sender`` sends to
it, and ``world`` is what it runs in: a clock, calls and a network (``memory_network``).
"""

from s4node.testing.any_order import rows_in_any_order
from s4node.testing.app_test import AppTest
from s4node.testing.sender import Refused

__all__ = ["AppTest", "Refused", "rows_in_any_order"]
