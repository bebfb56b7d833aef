"""``s4 log tail --system``: records as they are, read with the formats of the app."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

_TOPICS = '''
from s4node.systems.memory import MemorySystem

class Topics(MemorySystem):
    """A topic whose records have a time of their own; the app's class has ``at``, renamed."""

    def __init__(self, name, config):
        super().__init__(name, config)
        self.create("orders", 1, records=True)
        for user in (b"ann", b"bob"):
            value = b'{"user": "%b", "atMs": 5}' % user
            self.put_record("orders", 0, value, key=b"no. 7", created_ms=1500)
'''

_FORMATS = """
from s4node import Event

class Order(Event, rename="camel"):
    user: str
    at_ms: int = 0

class Orders:
    def decode(self, value):
        return Order("joe", 7)
"""

_SETTINGS = """
systems.topics.type = s4_test_topics:Topics
streams.orders.record.time = at
streams.orders.record.key = number
"""


async def test_a_record_is_shown_as_it_is_and_its_time_beside_its_place(tmp_path: Path) -> None:
    tailed = await tail(tmp_path)
    assert tailed == '{"user":"ann","atMs":5,"number":"no. 7"}\n'
    assert await tail(tmp_path, "--json") == (
        '{"partition":0,"offset":0,"time":1.5,"event":{"user":"ann","atMs":5,"number":"no. 7"}}\n'
    )


async def test_formats_are_found_in_the_working_folder_and_beside_the_settings(
    tmp_path: Path,
) -> None:
    tailed = await tail(tmp_path, "-p", "streams.orders.samza.msg.serde=s4_test_formats:Orders")
    assert tailed == '{"user":"joe","at_ms":7,"number":"no. 7"}\n'


# -- set-up ---------------------------------------------------------------------------------------


async def tail(folder: Path, *words: str) -> str:
    """The first record as the installed ``s4`` shows it; its settings are in another folder."""
    beside, here = folder / "settings", folder / "here"
    for each in (beside, here):
        each.mkdir(exist_ok=True)
    (beside / "app.properties").write_text(_SETTINGS)
    (beside / "s4_test_topics.py").write_text(_TOPICS)
    (here / "s4_test_formats.py").write_text(_FORMATS)
    s4 = Path(sys.executable).parent / "s4"
    given = ("log", "tail", "orders", "--system", "topics", "--from", "oldest", "--count", "1")
    command = [str(s4), *given, "--config", "../settings/app.properties", *words]
    done = await trio.run_process(command, cwd=here, capture_stdout=True, capture_stderr=True)
    return done.stdout.decode()
