"""The kit for app authors: runs an app in memory, on a clock that the test moves.

::

    from s4node.testing import AppTest

    def test_a_click_is_counted():
        with AppTest(app) as test:
            test.send("clicks", Click("joe"))
            assert test.state(Count, "joe").clicks == 1
"""

from s4node.testing.app_test import AppTest
from s4node.testing.client import Refused

__all__ = ["AppTest", "Refused"]
