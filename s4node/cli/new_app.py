"""``s4 new-app``: creates the project of a new app, with a test that passes.

Rules
- It creates the whole project or nothing, so that it can be retried, and changes no existing file.
"""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
import shutil
from pathlib import Path
from string import Template

from s4node.cli.output import report
from s4node.errors import ConfigError
from s4node.version import __version__

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
    reported: int = 0

    def on_event(self, click: Click) -> None:
        """Count one click."""
        self.clicks += 1

    def on_time(self) -> None:
        """Put the total if it has changed."""
        if self.reported != self.clicks:
            self.reported = self.clicks
            self.totals.put(Total(str(self.key), self.clicks))


class $cls(App):
    """Input stream "clicks", output stream "totals"."""

    def on_init(self) -> None:
        """Declare the graph. The setting s4.app.seconds is the interval of totals."""
        count = self.create_pe(Count)
        count.totals = self.create_output_stream("totals", types=Total)
        count.set_timer_interval(float(self.parameters.get("seconds", "1")))
        self.create_input_stream("clicks", count, key="user")


app = $cls("$project")
'''

_TEST = '''\
"""Run with pytest."""

from s4node.testing import AppTest, ClusterTest, check_seeds

from app import $names


def test_each_user_s_clicks_are_counted() -> None:
    with AppTest($cls, partitions=4) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))

        assert test.state(Count, "joe").clicks == 2
        assert test.state(Count, "ann").clicks == 1


def test_a_total_is_put_after_a_while_and_only_when_it_has_changed() -> None:
    with AppTest($cls, parameters={"seconds": 10}) as test:
        test.send("clicks", Click("joe"))
        test.advance(seconds=9)
        assert test.output("totals") == []

        test.advance(seconds=1)
        assert test.take_output("totals") == [Total("joe", 1)]

        test.advance(seconds=60)
        assert test.take_output("totals") == []


def test_clicks_count_once_whatever_is_killed_or_cut() -> None:
    def scenario(seed: int) -> None:
        durable = {"s4.stream.clicks.grade": "durable"}
        with ClusterTest($cls, hosts=2, seed=seed, settings=durable) as test:
            test.faults(2, seconds=3)
            for _ in range(10):
                test.send("clicks", Click("joe"), Click("ann"))
                test.advance(seconds=0.3)
            test.settle()
            assert test.state(Count, "joe").clicks == 10
            assert test.state(Count, "ann").clicks == 10

    check_seeds(scenario, range(10))
'''

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
description = "An app of s4node: $title."
requires-python = ">=3.11"
dependencies = ["s4node>=$version"] # s4 deploy has each node check that these are installed

[project.optional-dependencies]
test = ["pytest>=8", "s4node[ship]"]

[tool.setuptools]
py-modules = ["app"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_PROPERTIES = """\
# Settings of the app, for: s4 run app.py --config app.properties
# The command "s4 config default" prints every setting with its meaning.

s4.listener.address = tcp://127.0.0.1:12001

# Each event of "clicks" counts once, whatever is killed; the counts are saved.
s4.stream.clicks.grade = durable

# "totals" is stored by the log node, which listens at this address.
s4.stream.totals.consumers = log
s4.cluster.log.address = tcp://127.0.0.1:12000
"""

_COMPOSE = """\
# The app, and a log node that keeps its stream "totals". Build the image once, in s4node's folder:
#   docker build --file docker/Dockerfile --tag s4node .

x-s4: &s4
  image: $${S4_IMAGE:-s4node}
  restart: unless-stopped
  stop_grace_period: 40s # the app has task.shutdown.ms, 30 s, to stop in order

services:
  # Makes an authority, and a certificate for each of the others, which mounts only its own.
  certs:
    <<: *s4
    user: root # to give each certificate to the image's user
    restart: "no"
    entrypoint: [sh, -ec]
    command:
      - |
        s4 certs /certs s4://logs/node/log s4://logs/operator/totals \\
          s4://default/node/app,s4://logs/producer/app
        chown -R s4:s4 /certs/*/
    healthcheck:
      disable: true
    volumes:
      - authority:/certs
      - log-certs:/certs/log
      - totals-certs:/certs/totals
      - app-certs:/certs/app

  log:
    <<: *s4
    command:
      - node
      - logs
      - --name=log
      - --config=/certs/log/tls.properties
      - -ps4.listener.address=tls+tcp://0.0.0.0:12000
      - -ps4.listener.advertise=log
      - -ps4.log.folder=/var/lib/s4/.s4node/log
    healthcheck:
      test: [CMD, s4, health, "tls+tcp://127.0.0.1:12000", --config=/certs/log/tls.properties]
    volumes:
      - log-certs:/certs/log:ro
      - log:/var/lib/s4/.s4node
    depends_on:
      certs:
        condition: service_completed_successfully

  # Creates the stream and ends; does nothing if the stream exists.
  totals:
    <<: *s4
    restart: on-failure
    command:
      - log
      - create
      - totals
      - --partitions=4
      - --key=user
      - --to=tls+tcp://log:12000
      - --config=/certs/totals/tls.properties
    volumes:
      - totals-certs:/certs/totals:ro
    depends_on:
      log:
        condition: service_healthy

  app:
    <<: *s4
    command:
      - run
      - /srv/app/app.py
      - --config=/srv/app/app.properties
      - --config=/certs/app/tls.properties
      - -ps4.listener.address=tls+tcp://0.0.0.0:12000
      - -ps4.listener.advertise=app
      - -ps4.cluster.log.address=tls+tcp://log:12000
    healthcheck:
      test: [CMD, s4, health, "tls+tcp://127.0.0.1:12000", --config=/certs/app/tls.properties]
    volumes:
      - app-certs:/certs/app:ro
      - state:/var/lib/s4/.s4node
      - .:/srv/app:ro
    depends_on:
      totals:
        condition: service_completed_successfully

volumes:
  authority:
  log-certs:
  totals-certs:
  app-certs:
  log:
  state:
"""

_README = """\
# $title

`app.py` is the app, `test_app.py` tests it in memory, `app.properties` has its settings.

```console
$$ pip install '.[test]'            # into an environment that has s4node; brings pytest
$$ python -m pytest                 # test it
$$ s4 graph app.py                  # as a Mermaid flowchart
$$ s4 run app.py                    # run it in memory only; Ctrl-C stops it
$$ echo '{"user": "joe"}' | s4 send clicks    # in another terminal
```

With its settings each event counts once, and a log node keeps the totals:

```console
$$ s4 node logs -p s4.log.folder=log &
$$ s4 log create totals --partitions 4 --key user
$$ s4 run app.py --config app.properties &
$$ echo '{"user": "joe"}' | s4 send clicks
$$ s4 log tail totals --from oldest
```

`docker compose up` starts the same in containers; `compose.yaml` says how to build the image.

```console
$$ echo '{"user": "joe"}' | docker compose exec -T app s4 send clicks
$$ docker compose exec log s4 log tail totals --from oldest
```
"""

_FILES = {
    "pyproject.toml": _PYPROJECT,
    "app.py": _APP,
    "test_app.py": _TEST,
    "app.properties": _PROPERTIES,
    "compose.yaml": _COMPOSE,
    "README.md": _README,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits, - and _")
    parser.add_argument("--folder", metavar="DIR", help="must not exist yet (default: ./NAME)")
    parser.set_defaults(function=new_app)


def new_app(name: str, folder: str | None) -> int:
    """Create the app ``name`` in ``folder``, by default ./``name``; returns the exit status.

    Raises ConfigError if the name is invalid or the folder exists.
    """
    if not _NAME.match(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is not a name for an app; use lower-case letters, digits, - and _, "
            f"beginning with a letter, such as click-totals"
        )
    path = Path(folder or name)
    parts = re.split(r"[-_]+", name.strip("-_"))
    cls = "".join(part.capitalize() for part in parts)
    cls = cls if cls.endswith("App") else f"{cls}App"
    names = ", ".join(sorted(["Click", "Count", "Total", cls]))
    values = {
        "cls": cls,
        "names": names,
        "project": "-".join(parts),
        "title": " ".join(parts),
        "version": __version__,
    }
    try:
        path.mkdir(parents=True)
        try:
            path.chmod(0o755)  # whatever the umask: the image's user reads them
            for file, text in _FILES.items():
                (path / file).write_text(Template(text).substitute(values), encoding="utf-8")
                (path / file).chmod(0o644)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; name another folder with --folder") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be created: {error.strerror or error}; free some space, fix the "
            f"permissions, or name another folder with --folder"
        ) from error
    report(
        f"created {path} with {', '.join(_FILES)}\n"
        f"  test it:  cd {shlex.quote(str(path))} && pip install '.[test]' && python -m pytest\n"
        f"  run it:   s4 run {shlex.quote(str(path / 'app.py'))}"
    )
    return 0
