"""``s4 new-app``: makes the folder of a new app, with a test that passes.

Rules
- It makes all of it or nothing, so that it can be tried again; nothing that exists is touched.
"""

from __future__ import annotations

import keyword
import re
import shlex
import shutil
import sys
from pathlib import Path
from string import Template

from s4node.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_-]*\Z")

_APP = '''\
"""$title: counts how often each user clicks."""

from s4node import App, Event, OutputStream, ProcessingElement


class Click(Event):
    """A user has clicked. Append new fields at the end, with a default."""

    user: str


class Total(Event):
    """How often a user has clicked so far."""

    user: str
    clicks: int


class Count(ProcessingElement):
    """One user's clicks. Annotated attributes with a default are the state of each key."""

    totals: OutputStream  # set on the prototype, below

    clicks: int = 0
    told: int = 0

    def on_event(self, click: Click) -> None:
        """Count one click."""
        self.clicks += 1

    def on_time(self) -> None:
        """Tell the total if it has changed."""
        if self.told != self.clicks:
            self.told = self.clicks
            self.totals.put(Total(str(self.key), self.clicks))


class $cls(App):
    """Input stream "clicks", output stream "totals"."""

    def on_init(self) -> None:
        """Declare the graph. The setting s4.app.seconds says how often totals are told."""
        count = self.create_pe(Count)
        count.totals = self.create_output_stream("totals", types=Total)
        count.set_timer_interval(float(self.parameters.get("seconds", "1")))
        self.create_input_stream("clicks", count, key="user")
'''

_TEST = '''\
"""Run with pytest."""

from s4node.testing import AppTest

from app import $names


def test_each_user_s_clicks_are_counted() -> None:
    with AppTest($cls, partitions=4) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))

        assert test.state(Count, "joe").clicks == 2
        assert test.state(Count, "ann").clicks == 1


def test_a_total_is_told_after_a_while_and_only_when_it_has_changed() -> None:
    with AppTest($cls, parameters={"seconds": 10}) as test:
        test.send("clicks", Click("joe"))
        test.advance(seconds=9)
        assert test.output("totals") == []

        test.advance(seconds=1)
        assert test.take_output("totals") == [Total("joe", 1)]

        test.advance(seconds=60)
        assert test.take_output("totals") == []
'''

_README = """\
# $title

`app.py` is the app, `test_app.py` tests it in memory.

```console
$$ python -m pytest                 # test it
$$ s4 graph app.py                  # draw it
$$ s4 run app.py                    # run it; Ctrl-C stops it
$$ echo '{"user": "joe"}' | s4 send clicks    # in another terminal
```
"""

_FILES = {"app.py": _APP, "test_app.py": _TEST, "README.md": _README}


def new_app(name: str, folder: Path | None = None) -> int:
    """Make the app ``name`` in ``folder`` (by default one of its name, here); the exit status.

    Raises ConfigError for a name that cannot be an app's, and for a folder that exists.
    """
    if not _NAME.match(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is no name for an app; use a small letter, then small letters, digits, - "
            f"and _, such as click-totals"
        )
    folder = folder or Path(name)
    words = re.split(r"[-_]+", name.strip("-_"))
    cls = "".join(word.capitalize() for word in words)
    cls = cls if cls.endswith("App") else f"{cls}App"
    names = ", ".join(sorted(["Click", "Count", "Total", cls]))
    values = {"cls": cls, "names": names, "title": " ".join(words)}
    try:
        folder.mkdir(parents=True)
        try:
            for file, text in _FILES.items():
                (folder / file).write_text(Template(text).substitute(values), encoding="utf-8")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except FileExistsError as error:
        raise ConfigError(f"{folder} exists already; name another folder with --folder") from error
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made: {error.strerror or error}; make room and rights there, or "
            f"name another folder with --folder"
        ) from error
    print(
        f"made {folder} with {', '.join(_FILES)}\n"
        f"  test it:  cd {shlex.quote(str(folder))} && python -m pytest\n"
        f"  run it:   s4 run {shlex.quote(str(folder / 'app.py'))}",
        file=sys.stderr,
    )
    return 0
