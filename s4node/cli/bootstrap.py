"""``s4 bootstrap``: runs an app's PEs over history on Spark, and makes a savepoint of the result.

Rules
- The app need not run, and what runs is left alone: the result is a savepoint, of which nodes have
  nothing until they are started from it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from s4node.cli.arguments import cluster_option, json_option, setting_options
from s4node.cli.output import report
from s4node.cli.savepoint import row_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.load_app import find_app
from s4node.errors import ConfigError

DROP = "drop"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=bootstrap)
    parser.add_argument("target", metavar="APP", help="FILE.py or package.module")
    parser.add_argument(
        "--history",
        metavar="STREAM=PLACE",
        action="append",
        default=[],
        help="the history of an input stream: the address of the log that has it (the default for "
        "inputs read from a log), or files that Spark reads, such as Parquet; may be repeated",
    )
    parser.add_argument(
        "--order",
        metavar="COLUMNS",
        default="",
        help="comma-separated columns that order a history of files: a time, then tie-breakers",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        default="",
        help="the name of the savepoint (default: date and time, UTC)",
    )
    parser.add_argument(
        "--master", metavar="URL", default="local[*]", help="Spark's master (default: %(default)s)"
    )
    parser.add_argument(
        "--work",
        metavar="FOLDER",
        default="",
        help="a folder for intermediate files, which this machine and all executors reach; needed "
        "with a --master of other machines (default: a temporary folder)",
    )
    parser.add_argument(
        "--outputs",
        metavar="PLACE",
        default=DROP,
        help="where events on output streams go: %(default)s (the default), the address of a log "
        "with streams of these names, or a folder, as Parquet files",
    )
    json_option(parser)
    cluster_option(parser)
    setting_options(parser)


def bootstrap(
    target: str,
    config: Config,
    *,
    history: list[str],
    order: str,
    name: str,
    master: str,
    work: str,
    outputs: str,
    as_json: bool,
) -> int:
    try:
        from s4node.spark import register
        from s4node.spark.addresses import is_address
        from s4node.spark.history import bootstrap as on_spark
        from s4node.spark.history.outputs import Outputs
        from s4node.spark.history.replay import AppSource
        from s4node.spark.history.savepoint import check_free, write_savepoint
        from s4node.spark.java import spark_session
        from s4node.spark.short_errors import reasons_of_spark
    except ImportError as error:
        raise ConfigError(
            f"Spark is not installed for {sys.executable}: {error}. "
            f"Run: pip install 's4node[spark]'"
        ) from error
    if not (work or master.startswith("local")):
        raise ConfigError(
            f"--master {master} runs executors on other machines: name a folder for stages that "
            f"this machine and all executors reach with --work, such as a mounted one"
        )
    named, file = _named(target)
    values = {each.name: each.text for each in config.items() if each.origin != "default"}
    places = _places(history)
    name = name or f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    source = AppSource(named, values, config[settings.CLUSTER_PARTITIONS])
    check_free(source, name)
    kept = None if outputs == DROP else Outputs(outputs, name, config)
    keep = kept.streams_of(source.made()) if kept else []
    with reasons_of_spark(), ExitStack() as undo:
        spark = spark_session(f"s4 bootstrap {target}", os.cpu_count() or 1, master)
        undo.callback(spark.stop)
        if file:
            spark.addArtifacts(file, pyfile=True)
        register(spark)  # so that the format finds the file
        histories: dict[str, Any] = {
            stream: place if is_address(place) else spark.read.load(place)
            for stream, place in places.items()
        }
        if not histories:
            histories = _logs(config)
        given = {"order": [each.strip() for each in order.split(",")]} if order else {}
        found = on_spark.bootstrap(
            spark, named, histories, config=values, keep=keep, work=work, report=_report, **given
        )
        undo.callback(found.close)
        if found.refused:
            _report(f"{found.refused} events had no key and were left out, the first: {found.why}")
        for line in kept.deliver(found, keep) if kept else ():
            _report(line)
        manifest = write_savepoint(found, name)
    if as_json:
        print(json.dumps(row_of(manifest)))
    else:
        size = manifest.bytes / 1e6
        print(f"savepoint {manifest.name} of {manifest.app}: {len(manifest.tasks)} tasks, "
              f"{size:.1f} MB; go on: s4 run {target} --from {manifest.name}")  # fmt: skip
    return 0


def _report(line: str) -> None:
    report(f"s4: {line}")


def _named(target: str) -> tuple[str, str]:
    """``module:name`` of an app for Spark's workers, and the file that they need, if any."""
    module, found = find_app(target)
    name = next(name for name, value in vars(module).items() if value is found)
    place = target.partition(":")[0]
    file = str(Path(place).resolve()) if place.endswith(".py") else ""
    return f"{module.__name__}:{name}", file


def _places(history: list[str]) -> dict[str, str]:
    found = {}
    for each in history:
        stream, sign, place = each.partition("=")
        if not (stream and sign and place):
            raise ConfigError(
                f"--history {each!r} is not STREAM=PLACE, such as "
                f"flights=tcp://archive:12000 or flights=/data/flights.parquet"
            )
        found[stream] = place
    return found


def _logs(config: Config) -> dict[str, str]:
    """The logs that the app's inputs are read from, by stream."""
    addresses = config.matching(settings.SYSTEM_ADDRESS)
    found = {}
    for each in config[settings.TASK_INPUTS]:
        system, _, stream = each.partition(".")
        if system in addresses:
            found[stream] = addresses[system]
    if not found:
        raise ConfigError(
            "no history is named: add --history STREAM=PLACE, or the settings with which the app "
            "reads a log (task.inputs and systems.log.address)"
        )
    return found
