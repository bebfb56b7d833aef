"""Packages: what goes along, and that an app runs from one in a process without its file."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import shutil
import stat
import struct
import sys
import tracemalloc
import unicodedata
import zipfile
from contextlib import asynccontextmanager
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import trio
from harness import ANY_PORT, DEADLINE, ROOT, plain_errors, until

from s4node import Client, Event, packaged
from s4node.cluster.node import package as archive
from s4node.cluster.node.package import Manifest, Package, Store
from s4node.cluster.node.restart_policy import Limits
from s4node.cluster.node.supervisor import ContainerProcess, supervising
from s4node.cluster.node.supervisor_protocol import Begin
from s4node.deploy import requirements
from s4node.deploy.load_app import load_packaged as load
from s4node.deploy.pack import pack
from s4node.errors import ConfigError, ContainerFailed, PackageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# -- an app goes by value -------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_app_runs_from_its_package_without_its_files(folder: Path) -> None:
    out = folder / "out"
    package = pack(str(folder / "talker.py"), settings={"s4.app.file": str(out)})
    for name in ("talker.py", *BESIDE):
        (folder / name).unlink()
    async with container_of(stored(package, folder)) as process:
        async with Client(await process.wait_ready()) as client:
            stream = await client.stream("sentences")
            await stream.send(Sentence("a b a"))
            await stream.flush()
        await until(lambda: out.exists() and out.read_text().count(";") == 3)
    assert sorted(out.read_text().split(";")) == ["", "a 5 times", "a 6 times", "b 3 times"]


@pytest.mark.slow
async def test_an_error_in_a_packaged_app_shows_the_lines_of_its_file(folder: Path) -> None:
    file = folder / "fails.py"
    file.write_text(
        "from s4node import App\n"
        "class Fails(App):\n"
        "    def on_init(self):\n"
        "        self.missing_thing()  # here\n"
    )
    package = pack(str(file))
    file.unlink()
    async with container_of(stored(package, folder)) as process:
        with pytest.raises(ContainerFailed, match="on_init of app 'Fails'") as caught:
            await process.wait_ready()
    assert "self.missing_thing()  # here" in caught.value.trace


def test_modules_that_the_file_imports_from_its_folder_are_packed_and_no_others(
    folder: Path,
) -> None:
    package = pack(str(folder / "talker.py"))
    assert sorted(package.files) == [
        "app.pickle",
        "sources/rich_late/__init__.py",
        "sources/rich_late/form.txt",
        "sources/rich_late/shown.py",
        "sources/rich_words.py",
        "sources/talker.py",
    ]
    manifest = package.manifest
    assert (manifest.name, manifest.kind) == ("talker", "pickle")
    assert manifest.python == archive.python_here()


# -- what a package names of ours -----------------------------------------------------------------

APPS = sorted((ROOT / "apps").glob("*/app.py"))
GOLDEN = ROOT / "tests" / "golden" / "package-0.1.zip"

TASKS = """\
from s4node import GenericEvent, KeyFinder, Oldest, TaskApp

class Town(KeyFinder):
    def get(self, event):
        return (event.town,)

class Tally:
    def init(self, context):
        self.seen = context.store("seen")
    def process(self, envelope, collector, coordinator):
        self.seen.put(envelope.key, self.seen.get(envelope.key, 0) + 1)

class TallyApp(TaskApp):
    start = Oldest()
    def on_init(self):
        self.create_store("seen", key=str, value=int)

app = TallyApp("tally", Tally, inputs=["log.visits"], outputs={"towns": Town()})
app.create_store("late", key=str, value=GenericEvent | None)
"""

EXTREMES = """\
from s4node import Aggregates, App, Event, Max, Sum

class Trade(Event):
    user: str
    price: float

class Prices(Aggregates, of=Trade):
    highest = Max("price")
    sum = Sum("price")

class Trades(App):
    def on_init(self):
        self.create_input_stream("trades", self.create_pe(Prices), key="user")

app = Trades("trades")
"""


def modules_of_ours(pickled: bytes) -> set[str]:
    """The modules of s4node that a pickle names."""
    texts = {arg for _, arg, _ in pickletools.genops(pickled) if isinstance(arg, str)}
    return {text for text in texts if re.fullmatch(r"s4node(\.\w+)*", text)}


def test_a_package_names_one_module_of_ours_which_never_moves(folder: Path) -> None:
    (folder / "tally.py").write_text(TASKS)
    (folder / "extremes.py").write_text(EXTREMES)
    mine = (folder / f"{name}.py" for name in ("talker", "tally", "extremes"))
    for file in (*mine, *APPS):
        pickled = pack(str(file)).files["app.pickle"]
        assert modules_of_ours(pickled) == {"s4node.packaged"}, file


@pytest.mark.slow
async def test_a_golden_package_of_an_earlier_layout_runs(tmp_path: Path) -> None:
    package = archive.decode(GOLDEN.read_bytes())
    if package.manifest.python != archive.python_here():
        pytest.skip(f"the golden package is of Python {package.manifest.python}")
    package.manifest.settings["s4.app.file"] = str(tmp_path / "out")
    async with container_of(stored(package, tmp_path)) as process:
        async with Client(await process.wait_ready()) as client:
            stream = await client.stream("sentences")
            await stream.send(Sentence("a b a"))
            await stream.flush()
        out = tmp_path / "out"
        await until(lambda: out.exists() and out.read_text().count(";") == 3)
    assert sorted(out.read_text().split(";")) == ["", "a 5 times", "a 6 times", "b 3 times"]


def test_a_golden_package_names_what_there_still_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    package = archive.decode(GOLDEN.read_bytes())
    pickled = package.files["app.pickle"]
    assert modules_of_ours(pickled) == {"s4node.packaged"}
    if package.manifest.python == archive.python_here():
        assert load(package, tmp_path / "code").name == "talker"


def test_a_name_that_this_s4node_lacks_is_reported_with_the_fix() -> None:
    with pytest.raises(PackageError, match="has no Retired; package the app again"):
        packaged.find("Retired")


# -- what runs under run runs when it is deployed -------------------------------------------------

LOCKS = """\
import threading
from s4node import App, ProcessingElement
lock = threading.Lock()
class Locks(ProcessingElement):
    def on_event(self, event):
        lock.acquire()
app = App('locks')
app.create_input_stream('names', app.create_pe(Locks), key='name')
"""

TREES = """\
from s4node import App, Event, ProcessingElement
class Tree(Event):
    children: 'list[Tree]' = []
class Prunes(ProcessingElement):
    def on_event(self, tree: Tree): pass
class Trees(App):
    def on_init(self):
        prunes = self.create_pe(Prunes)
        prunes.set_singleton()
        self.create_input_stream('trees', prunes)
"""

STATE = """\
from __future__ import annotations
from dataclasses import dataclass
from s4node import App, Event, ProcessingElement
class Item(Event):
    name: str
@dataclass
class Seen:
    last: Item | None = None
class Keeps(ProcessingElement):
    note: Unknown
    seen: dict[str, Seen] = {}
    def on_event(self, item: Item) -> None:
        self.seen[item.name] = Seen(item)
app = App("keeps")
app.create_input_stream("items", app.create_pe(Keeps), key="name")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (STATE, {"s4.stream.items.grade": "durable"}),
        (LOCKS, {}),  # cannot be pickled: its source goes
        (TREES, {}),
        ((ROOT / "apps/words/app.py").read_text(), {"s4.stream.lines.grade": "durable"}),
    ],
    ids=["types of state as texts", "a lock", "a type of itself", "words"],
)
async def test_an_app_that_runs_from_its_file_runs_when_it_is_deployed(
    tmp_path: Path, text: str, settings: dict[str, str]
) -> None:
    file = tmp_path / "fits.py"
    file.write_text(text)
    package = pack(str(file), settings={"s4.state.folder": str(tmp_path / "state"), **settings})
    file.unlink()
    async with container_of(stored(package, tmp_path)) as process:
        assert await process.wait_ready()


@pytest.mark.slow
async def test_the_packaged_code_runs_wherever_the_node_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
        (folder / "till.py").write_text(
            "from till_words import WORDS\nfrom s4node import App\n"
            "class Till(App):\n    def on_start(self): raise RuntimeError(WORDS)\n"
        )
        (folder / "till_words.py").write_text(f"WORDS = 'packaged {folder.name}'\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    package = pack("till")
    monkeypatch.chdir(elsewhere)
    (here / "till.py").write_text("1 / 0\n")
    async with container_of(stored(package, tmp_path)) as process:
        with pytest.raises(ContainerFailed, match="packaged here"):
            await process.wait_ready()


def test_a_module_is_packed_from_whatever_folder_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "prices_of_test.py").write_text("PRICES = {}\n")
    (tmp_path / "library" / "sniffio").mkdir()
    (tmp_path / "library" / "sniffio" / "__init__.py").write_text("")  # here the installed one wins
    (tmp_path / "uses_prices.py").write_text(
        "import prices_of_test, msgspec, sniffio\nfrom s4node import App\napp = App('prices')\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "library")])
    package = pack(str(tmp_path / "uses_prices.py"))
    assert sorted(package.files) == [
        "app.pickle",
        "sources/prices_of_test.py",
        "sources/uses_prices.py",
    ]


def test_modules_that_an_app_imports_by_computed_names_are_packed(tmp_path: Path) -> None:
    (tmp_path / "plug_of_test.py").write_text("")
    (tmp_path / "plugs.py").write_text(
        "import importlib\nfrom s4node import App\n"
        "importlib.import_module('plug_' + 'of_test')\napp = App('plugs')\n"
    )
    assert "sources/plug_of_test.py" in pack(str(tmp_path / "plugs.py")).files


PICKLES = """
from __future__ import annotations
import dataclasses, enum
from s4node import App, Event
class Model:
    class Part: ...
class Kind(enum.Enum):
    A = 1
@dataclasses.dataclass
class Point:
    x: int
class Click(Event):
    user: str
def heavy(n): return n * n
class Pickles(App):
    def made(self):
        return Model(), Model.Part(), Kind.A, Point(1), Click("joe"), heavy
app = Pickles("pickles")
"""


def test_an_app_that_was_packaged_can_pickle_what_its_file_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "pickles_of_test.py").write_text(PICKLES)
    package = pack(str(tmp_path / "pickles_of_test.py"))
    assert package.manifest.kind == "pickle"
    del sys.modules["pickles_of_test"]
    for value in load(package, tmp_path / "unpacked").made():  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(value))
        assert type(again) is type(value)
    assert again(3) == 9
    assert again is value


def test_a_package_without_a_file_on_top_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "space_of_test" / "inner").mkdir(parents=True)
    (tmp_path / "space_of_test" / "inner" / "words.py").write_text("WORDS = 'found'\n")
    (tmp_path / "uses_space.py").write_text(
        "from s4node import App\nfrom space_of_test.inner.words import WORDS\napp = App(WORDS)\n"
    )
    files = pack(str(tmp_path / "uses_space.py")).files
    assert "sources/space_of_test/inner/words.py" in files


def test_a_package_that_is_installed_in_editable_form_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finder as setuptools writes them imports it, so no folder of the path has it."""
    home = tmp_path / "elsewhere" / "edited_of_test"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("NAME = 'edited'\n")

    class Editable:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            file = home / "__init__.py"
            return spec_from_file_location(name, file) if name == "edited_of_test" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    (tmp_path / "uses_edited.py").write_text(
        "from s4node import App\nfrom edited_of_test import NAME\napp = App(NAME)\n"
    )
    assert "sources/edited_of_test/__init__.py" in pack(str(tmp_path / "uses_edited.py")).files


def test_an_import_in_a_handler_that_cannot_be_found_is_refused_where_it_is_packaged(
    tmp_path: Path,
) -> None:
    (tmp_path / "later_of_test.py").write_text("")
    file = tmp_path / "imports_later.py"
    text = (
        "from importlib import import_module\nfrom s4node import App\napp = App('later')\n"
        "def later(): return import_module('{}')\n"
    )
    file.write_text(text.format("later_of_test"))
    assert "sources/later_of_test.py" in pack(str(file)).files
    file.write_text(text.format("never_of_test.tax"))
    with pytest.raises(
        PackageError, match=r"imports_later.py:4: import_module\('never_of_test.tax'"
    ):
        pack(str(file))
    file.write_text(
        "try:\n    import_module('never_of_test')\nexcept Exception:\n    x = 1\n"
        "from s4node import App\napp = App('later')\n"
    )
    assert pack(str(file)).manifest.name == "later"


@pytest.mark.parametrize("target", ["sampled_of_test.py", "sampled_of_test"])
def test_modules_of_the_app_s_folder_that_settings_name_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "of_one_s_own.py").write_text("from helps_it import Sample\n")
    (tmp_path / "helps_it.py").write_text("from s4node import Executor as Sample\n")
    (tmp_path / "sampled_of_test.py").write_text("from s4node import App\napp = App('sampled')\n")
    package = pack(target, settings={"container.lifecycle.listeners": "a:B, of_one_s_own:Sample"})
    assert {"sources/of_one_s_own.py", "sources/helps_it.py"} <= set(package.files)


def test_files_that_a_source_finds_beside_itself_are_packed(tmp_path: Path) -> None:
    (tmp_path / "data" / "more").mkdir(parents=True)
    for name in ("words.txt", "data/a.txt", "data/more/b.txt", "other.txt", "unread.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "has_files_of_test.py").write_text(
        "from pathlib import Path\nHERE = Path(__file__).parent\n"
        "def read(): return (HERE / 'data' / 'a.txt').read_text() + open(HERE / 'words.txt')\n"
        "def none(): return '/', '', '..', '../x', '\\0'\n"
    )
    (tmp_path / "reads_files.py").write_text(
        "import has_files_of_test\nfrom s4node import App\napp = App('x')\nX = 'unread.txt'\n"
    )
    files = pack(str(tmp_path / "reads_files.py")).files
    assert sorted(name for name in files if name.endswith("txt")) == [
        "sources/data/a.txt",
        "sources/data/more/b.txt",
        "sources/words.txt",
    ]


# -- what an app needs installed ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "# those\nmsgspec>=0.1\nno-such-thing>=2 # this\n-r other.txt\n"),
        (
            "pyproject.toml",
            "[project]\nname='x'\ndependencies = ['msgspec>=0.1', 'no-such-thing>=2']\n",
        ),
    ],
)
def test_declared_requirements_are_checked_where_the_app_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / name).write_text(text)
    (tmp_path / "needs.py").write_text("from s4node import App\napp = App('needs')\n")
    package = pack(str(tmp_path / "needs.py"))
    assert package.manifest.requires == ["msgspec>=0.1", "no-such-thing>=2"]
    with pytest.raises(PackageError) as caught:
        load(package, tmp_path / "code")
    assert str(caught.value) == (
        "app 'needs' needs no-such-thing>=2 (not installed); install it on this node: "
        "pip install 'no-such-thing>=2'"
    )


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ("msgspec", True),
        ("msgspec<0.1", False),
        ("msgspec<0.1; python_version < '3'", True),
        ("s4node>=99", True),
    ],
)
def test_a_requirement_is_held_to_its_version_and_marker(requirement: str, fits: bool) -> None:
    if fits:
        requirements.check("app", [requirement])
    else:
        with pytest.raises(PackageError, match=r"app needs msgspec<0.1 \(0\.\d+"):
            requirements.check("app", [requirement])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("requirements.txt", "msgspec\n?!\n", "requirements.txt:2: '?!' is not a requirement"),
        ("pyproject.toml", "[project\n", "pyproject.toml cannot be read: "),
        ("pyproject.toml", "project = 1\n", "pyproject.toml cannot be read: "),
    ],
)
def test_a_declaration_that_cannot_be_read_is_reported(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PackageError, match=re.escape(words)):
        requirements.declared([tmp_path])


@pytest.mark.parametrize(
    "files",
    [
        {"requirements.txt": "more", "declared_of_test/requirements.txt": "msgspec"},
        {"declared_of_test/pyproject.toml": "[project]\ndependencies = ['msgspec']\n"},
        {"requirements.txt": "msgspec"},
        {"requirements.txt": "msgspec", "pyproject.toml": "[tool.ruff]\nline-length = 100\n"},
    ],
)
def test_what_a_module_needs_is_declared_beside_it_or_above_up_to_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    (tmp_path / "declared_of_test").mkdir()
    files["declared_of_test/app.py"] = "from s4node import App\napp = App('declares')\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in [name for name in sys.modules if name.startswith("declared_of_test")]:
        monkeypatch.delitem(sys.modules, name)
    assert pack("declared_of_test.app").manifest.requires == ["msgspec"]


def test_an_app_at_a_url_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="is a URL, but apps are loaded from this machine"):
        pack("https://shop.example/app.py")


def test_a_module_is_packed_with_its_whole_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = folder / "shop_of_test"
    (top / "deep").mkdir(parents=True)
    (top / "deep" / "app.py").write_text(
        "from s4node import App\nimport rich_words\nclass Shop(App): pass\n"
    )
    (top / "data.csv").write_text("1,2\n")
    (top / "__init__.py").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    package = pack("shop_of_test.deep.app", version="7", name="corner")
    assert package.manifest.entry == "shop_of_test.deep.app:Shop"
    assert (package.manifest.name, package.manifest.version) == ("corner", "7")
    assert sorted(package.files) == [
        "sources/rich_words.py",
        "sources/shop_of_test/__init__.py",
        "sources/shop_of_test/data.csv",
        "sources/shop_of_test/deep/app.py",
    ]


def test_the_version_is_of_the_content(folder: Path) -> None:
    first = pack(str(folder / "talker.py")).manifest.version
    assert pack(str(folder / "talker.py")).manifest.version == first
    assert pack(str(folder / "talker.py"), settings={"s4.app.file": "x"}).manifest.version != first
    (folder / "rich_late" / "form.txt").write_text("{0}")
    second = pack(str(folder / "talker.py")).manifest.version
    assert second != first
    (folder / "requirements.txt").write_text("msgspec")
    assert pack(str(folder / "talker.py")).manifest.version not in (first, second)


# -- what is no app, no package, or not for here --------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("x = 1\n", ConfigError, "has no App object and no App class"),
        ("1 / 0\n", ConfigError, "ZeroDivisionError: division by zero"),
        ("def\n", ConfigError, ":1: invalid syntax"),
    ],
)
def test_an_app_that_cannot_be_packaged_is_reported_before_anything_is_sent(
    tmp_path: Path, text: str, error: type[Exception], words: str
) -> None:
    file = tmp_path / "unfit.py"
    file.write_text(text)
    with pytest.raises(error) as caught:
        pack(str(file))
    assert words in str(caught.value)


def test_an_object_that_is_no_app_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"talker\.py:Sentence is not an App object or class"):
        pack(f"{folder / 'talker.py'}:Sentence")


@pytest.mark.slow
async def test_another_python_is_refused_before_anything_is_loaded(folder: Path) -> None:
    spoilt = Package(
        Manifest(name="old", version="1", kind="pickle", entry="x", python="3.9", s4node="0"),
        {archive.PICKLE: b"this would not even unpickle"},
    )
    async with container_of(stored(spoilt, folder)) as process:
        with pytest.raises(ContainerFailed) as caught:
            await process.wait_ready()
    assert "'old' was packaged with Python 3.9, and this node runs Python 3." in str(caught.value)


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zip_file:
        for name, content in files.items():
            zip_file.writestr(name, content)
    return out.getvalue()


def damaged(at: bytes, offset: int, value: int) -> bytes:
    """A package in which a byte was changed, so far behind each of these marks."""
    data = bytearray(Package(msgspec.json.decode(manifest(), type=Manifest), {}).encode())
    for mark in re.finditer(re.escape(at), bytes(data)):
        data[mark.start() + offset] = value
    return bytes(data)


def manifest(**changes: object) -> bytes:
    given = {
        "name": "a",
        "version": "1",
        "kind": "source",
        "entry": "m:a",
        "python": "3.11",
        "s4node": "0",
    }
    return msgspec.json.encode(given | changes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "this is not a package"),
        (b"PK\x03\x04 rubbish", "this is not a package"),
        (
            damaged(b"PK\x03\x04", 30 + len(archive.MANIFEST), 0xFF),
            "this is not a package (error: ",
        ),
        (damaged(b"PK\x01\x02", 8, 1), "is encrypted, password required for extraction"),
        (damaged(b"PK\x01\x02", 10, 99), "its files have to be deflated"),
        (zipped(other=b""), "it has no s4-package.json"),
        (zipped(**{archive.MANIFEST: b"{}"}), "cannot be read: Object missing required field"),
        (zipped(**{archive.MANIFEST: b'{"name": "\xff"}'}), "utf-8"),
        (zipped(**{archive.MANIFEST: b'{"x": ' + b"[" * 100_000}), "cannot be read: maximum recur"),
        (zipped(**{archive.MANIFEST: manifest(format=9)}), "has format 9"),
        (zipped(**{archive.MANIFEST: manifest(kind="pickle")}), "it has no app.pickle"),
        (
            zipped(**{archive.MANIFEST: manifest(), "sources/../../x": b""}),
            "has a file 'sources/../../x', which leads elsewhere",
        ),
        (zipped(**{archive.MANIFEST: manifest(), "/x": b""}), "leads elsewhere"),
        (zipped(**{archive.MANIFEST: manifest(), "sources//x": b""}), "leads elsewhere"),
        (zipped(**{archive.MANIFEST: manifest(), "sources/a\\b": b""}), "leads elsewhere"),
        (
            zipped(**{archive.MANIFEST: manifest(), "sources/a_b": b""}).replace(b"a_b", b"a\0b"),
            r"has a file 'sources/a\x00b', which leads elsewhere; rename the file",
        ),
        (zipped(a=b"1", b=b"2").replace(b"b", b"a"), "it has a file twice"),
        (zipped(**{archive.MANIFEST: manifest(name="../x")}), "'../x' is not a name for an app"),
        (zipped(**{archive.MANIFEST: manifest(name="/x")}), "is not a name for an app"),
        (zipped(**{archive.MANIFEST: manifest(name="..")}), "is not a name for an app"),
        (zipped(**{archive.MANIFEST: manifest(name="")}), "'' is not a name for an app"),
        (zipped(**{archive.MANIFEST: manifest(name="a\n")}), "is not a name for an app"),
        (
            zipped(**{archive.MANIFEST: manifest(version="1\n")}),
            r"'1\n' is not a version of app 'a'",
        ),
    ],
)
def test_a_file_that_is_not_a_package_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(PackageError) as caught:
        archive.decode(data)
    assert words.lower() in str(caught.value).lower()


def test_folders_in_a_package_are_left_out_for_zip_tools_write_them(tmp_path: Path) -> None:
    files = {"sources/": b"", "sources/m/": b"", "sources/m/a.py": b"x = 1\n"}
    package = archive.decode(zipped(**{archive.MANIFEST: manifest()}, **files))
    assert list(package.files) == ["sources/m/a.py"]
    assert (package.unpack(tmp_path / "here") / "m" / "a.py").read_bytes() == b"x = 1\n"


@pytest.mark.parametrize("name", ["sources//{}", "sources/../{}", "sources/{}/../../x"])
def test_unpacked_files_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    package = archive.decode(zipped(**{archive.MANIFEST: manifest()}))
    package.files[name.format(str(tmp_path / "out").lstrip("/"))] = b"escaped"
    with pytest.raises(PackageError, match="leads elsewhere"):
        package.unpack(tmp_path / "in" / "here")
    assert list(tmp_path.rglob("*")) == []


def test_a_link_in_a_package_becomes_a_file_and_its_target_is_not_written(
    tmp_path: Path,
) -> None:
    link = zipfile.ZipInfo("sources/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zip_file:
        zip_file.writestr(archive.MANIFEST, manifest())
        zip_file.writestr(link, str(tmp_path))
        zip_file.writestr("sources/link/x", b"escaped")
    with pytest.raises(PackageError, match=r"app 'a' cannot be unpacked to .*: .*/link"):
        archive.decode(out.getvalue()).unpack(tmp_path / "here")
    assert not (tmp_path / "here" / "link").is_symlink()
    assert not (tmp_path / "x").exists()


def test_a_package_with_a_file_of_too_long_a_name_is_reported(tmp_path: Path) -> None:
    package = archive.decode(zipped(**{archive.MANIFEST: manifest(), f"sources/{'x' * 300}": b""}))
    with pytest.raises(PackageError, match=r"cannot be unpacked to .*: .*name too long"):
        package.unpack(tmp_path / "here")


ESCAPES = "from s4node import App\nclass Fine(App):\n    pass\nescapes = App('../escapes')\n"


@pytest.mark.parametrize(
    ("app", "given", "words"),
    [
        ("Fine", {"name": "../../x"}, "'../../x' is not a name for an app that is deployed"),
        ("Fine", {"name": "/x"}, "'/x' is not a name for an app"),
        ("Fine", {"name": "x" * 300}, "'... (300 characters) is not a name for an app"),
        ("Fine", {"name": "ä" * 150}, "is not a name for an app"),
        ("Fine", {"name": "x\ny"}, r"'x\ny' is not a name for an app"),
        ("Fine", {"name": "a b"}, "'a b' is not a name for an app"),
        ("Fine", {"name": "\u0308a"}, "is not a name for an app"),
        ("Fine", {"version": "1\n2"}, "is not a version of app 'Fine'"),
        ("Fine", {"version": "\x1b[31m1"}, r"'\x1b[31m1' is not a version of app 'Fine'"),
        ("Fine", {"version": " "}, "is not a version of app 'Fine'"),
        ("Fine", {"version": "1" * 201}, "'... (201 characters) is not a version of app 'Fine'"),
        ("escapes", {}, "'../escapes' is not a name for an app"),
    ],
)
def test_a_name_that_leads_elsewhere_and_a_version_no_line_can_show_are_refused_where_packaged(
    tmp_path: Path, app: str, given: dict[str, str], words: str
) -> None:
    file = tmp_path / "apps_of_test.py"
    file.write_text(ESCAPES)
    with pytest.raises(PackageError) as caught:
        pack(f"{file}:{app}", **given)  # type: ignore[arg-type]
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "name", ["Zähler.v2", unicodedata.normalize("NFD", "Zähler"), "हिन्दी", "ที่นี่", "a-b_c", "_1"]
)
def test_names_in_any_alphabet_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    file = tmp_path / "apps_of_test.py"
    file.write_text(ESCAPES)
    made = pack(f"{file}:escapes", name=name)
    assert archive.decode(made.encode()).manifest.name == name


@pytest.mark.parametrize(
    "version", ["1.0+local-3", "2026-01-31T08:00:00+01:00", "feature/x", "1.0~rc1", "v1 (बीटा)"]
)
def test_any_word_can_be_a_version(tmp_path: Path, version: str) -> None:
    file = tmp_path / "apps_of_test.py"
    file.write_text(ESCAPES)
    made = pack(f"{file}:Fine", version=version)
    assert archive.decode(made.encode()).manifest.version == version


def test_a_small_archive_of_huge_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zip_file:
        zip_file.writestr("zeros", bytes(1 << 20))
    monkeypatch.setattr(archive, "MAX_BYTES", 100_000)
    with pytest.raises(PackageError, match="holds 1048576 bytes, and at most 100000 are"):
        archive.decode(out.getvalue())


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_holds_more_than_it_says_is_unpacked_no_further(method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as zip_file:
        zip_file.writestr("zeros", bytes(20 << 20))
    data = bytearray(out.getvalue())
    struct.pack_into("<I", data, data.find(b"PK\x01\x02") + 24, 10)
    tracemalloc.start()
    try:
        with pytest.raises(PackageError, match="this is not a package"):
            archive.decode(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


# -- the store ------------------------------------------------------------------------------------


def test_a_store_keeps_what_it_is_given(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest = store.put(b"data")
    assert store.put(b"data") == digest
    assert store.get(digest) == b"data"
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "store").iterdir()] == [0o600]


def test_a_store_whose_folder_has_gone_says_so_and_takes_packages_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest = store.put(b"data")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(PackageError, match="is missing; deploy the app again"):
        store.get(digest)
    assert store.put(b"data") == digest
    assert store.get(digest) == b"data"


def test_a_spoilt_package_is_not_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put(b"data")
    (tmp_path / f"{digest}.zip").write_bytes(b"evil")
    with pytest.raises(PackageError, match="is damaged; deploy the app again"):
        store.get(digest)
    assert store.put(b"data") == digest
    assert store.get(digest) == b"data"


def test_a_package_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackageError, match=r"cannot be stored at .*: "):
        Store(tmp_path / "file").put(b"data")


# -- set-up ---------------------------------------------------------------------------------------


# all that pickling by value could lose: names that only annotations use, streams that handlers use
# by name, a stream whose PE feeds it, what is set on prototypes, triggers, defaults, key finders,
# events with methods and factories, imports from beside the file, also late ones
RICH = """\
from __future__ import annotations
import msgspec
from pathlib import Path
from typing import ClassVar
from s4node import App, Event, KeyFinder, ProcessingElement
from rich_words import split, Word

class Sentence(Event):
    event_name: ClassVar[str] = "sentence"
    text: str
    tags: list[str] = msgspec.field(default_factory=list)
    def words(self) -> list[str]:
        return split(self.text)

class Length(KeyFinder):
    def get(self, event):
        return (str(len(event.text)),)

class Splitter(ProcessingElement):
    limit = 0
    def on_event(self, sentence: Sentence) -> None:
        for word in sentence.words():
            words.put(Word(word, self.limit))

class Counter(ProcessingElement):
    counts: dict = {}
    unit: str = "once"
    def on_event(self, word: Word) -> None:
        from rich_late import shown
        self.counts[word.text] = self.counts.get(word.text, 0) + 1
        if word.again:
            words.put(Word(word.text, word.again - 1))
        else:
            with Path(self.app.parameters["file"]).open("a") as file:
                file.write(shown(word.text, self.counts[word.text], self.unit))
    def on_trigger(self, word: Word) -> None:
        pass

app = App("talker")
counter = app.create_pe(Counter)
counter.unit = "times"
counter.set_trigger(Word, events=2)
words = app.create_stream("words", counter, key="text")
splitter = app.create_pe(Splitter)
splitter.limit = 2
app.create_input_stream("sentences", splitter, key=Length())
del counter, splitter
"""

BESIDE = {
    "rich_words.py": "from s4node import Event\n"
    "class Word(Event):\n    text: str\n    again: int = 0\n"
    "def split(text): return text.split()\n",
    "rich_late/__init__.py": "from rich_late.shown import shown\n",
    "rich_late/shown.py": "from pathlib import Path\n"
    "FORM = (Path(__file__).parent / 'form.txt').read_text()\n"
    "def shown(*values): return FORM.format(*values)\n",
    "rich_late/form.txt": "{0} {1} {2};",
    "other.py": "raise AssertionError('nobody imports this')\n",
    ".hidden.py": "",
}


class Sentence(Event):
    event_name = "sentence"
    text: str
    tags: list[str] = msgspec.field(default_factory=list)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "talker.py").write_text(RICH)
    for name, text in BESIDE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def stored(package: Package, folder: Path, **settings: str) -> Begin:
    """The command that runs the package, from a store in ``folder``."""
    digest = Store(folder / "store").put(package.encode())
    return Begin(
        package.manifest.name,
        "one",
        {"s4.listener.address": ANY_PORT, "s4.logger_level": "warning"} | package.manifest.settings,
        package=str(folder / "store" / f"{digest}.zip"),
        digest=digest,
        folder=str(folder / "unpacked"),
    )


@asynccontextmanager
async def container_of(begin: Begin) -> AsyncIterator[ContainerProcess]:
    with plain_errors(), trio.fail_after(DEADLINE):
        async with supervising(Limits()) as supervisor:
            process = supervisor.start(begin)
            yield process
            await process.stop()
