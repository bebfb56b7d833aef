"""Makes a package of an app, and loads the app of a package.

Rules
- ``FILE.py`` goes as a pickle of what the file defines, and as its source where that cannot be
  pickled. ``package.module`` goes as the sources of its whole top-level package.
- The modules that these import go along as sources, from whatever folder, unless it is one in which
  packages are installed. On the node they are found before anything else.
- What is installed does not go along. A ``pyproject.toml`` or ``requirements.txt`` beside the app
  declares it, and the node checks that it has it, before it loads anything.
- Whether a target is an app is found out here, before anything is sent.
"""

from __future__ import annotations

import ast
import linecache
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Literal

import cloudpickle

from s4node.app.app import App
from s4node.cluster.node import package as archive
from s4node.cluster.node.package import Manifest, Package
from s4node.config.paths import check_travels
from s4node.deploy import pickling, requirements
from s4node.deploy.load_app import find_app, load_app, loading, made_app
from s4node.errors import PackageError
from s4node.version import __version__

_SKIPPED = {"__pycache__", "node_modules"}


def pack(
    target: str, *, name: str = "", version: str = "", settings: Mapping[str, str] | None = None
) -> Package:
    """The package of the app that ``target`` names; raises ConfigError, PackageError.

    ``settings`` go along under their keys. Without a version it gets one of its content.
    """
    module, found = find_app(target)
    app = made_app(found, target)
    file = Path(module.__file__ or "").resolve()
    kind: Literal["pickle", "source"] = "source"
    if target.partition(":")[0].endswith(".py"):
        root = file.parent
        files = _closure([file], root)
        entry = f"{file.name}:{_name_in(module, found)}"
        with suppress(PackageError):
            files[archive.PICKLE] = pickling.dumps(found, module)
            kind, entry = "pickle", str(file)
    else:
        root, files = _sources_of(module)
        entry = f"{module.__name__}:{_name_in(module, found)}"
    manifest = Manifest(
        name=name or app.name,
        version=version,
        kind=kind,
        entry=entry,
        python=archive.python_here(),
        s4node=__version__,
        requires=requirements.declared(root),
        settings=dict(settings or {}),
    )
    for path in (entry, *files):
        check_travels(path)
    size = sum(map(len, files.values()))
    if size > archive.MAX_BYTES:
        raise PackageError(
            f"{target} has {size} bytes of files; {archive.MAX_BYTES} are allowed: keep data out "
            f"of the app's folder"
        )
    if not version:
        manifest = _versioned(manifest, archive.content_version(manifest, files))
    manifest.check_names()
    return Package(manifest, files)


def load(package: Package, folder: Path) -> App:
    """The app of a package, whose sources are written to ``folder``; runs its code.

    Raises PackageError where this is another Python, or where what it needs is not here.
    """
    package.check_python()
    manifest = package.manifest
    what = f"app {manifest.name!r}"
    requirements.check(what, manifest.requires)
    sources = str(package.unpack(folder))
    sys.path.insert(0, sources)
    with loading(what):
        try:
            if manifest.kind == "source":
                app = load_app(manifest.entry, sources)
            else:
                app = made_app(_unpickled(package), what)
        except ModuleNotFoundError as error:
            raise PackageError(
                f"{what} needs {error.name!r}, which this node has not; install it here, and "
                f"declare it in a requirements.txt beside the app"
            ) from error
    app.name = manifest.name
    return app


def _versioned(manifest: Manifest, version: str) -> Manifest:
    import msgspec

    return msgspec.structs.replace(manifest, version=version)


def _name_in(module: ModuleType, found: object) -> str:
    return next(name for name, value in vars(module).items() if value is found)


def _unpickled(package: Package) -> object:
    entry = Path(package.manifest.entry)
    source = package.files.get(archive.SOURCES + entry.name)
    if source is not None:  # tracebacks show its lines, wherever it is loaded
        text = source.decode(errors="replace")
        linecache.cache[str(entry)] = len(text), None, text.splitlines(keepends=True), str(entry)
    return cloudpickle.loads(package.files[archive.PICKLE])


# -- which files go along -------------------------------------------------------------------------


def _sources_of(module: ModuleType) -> tuple[Path, dict[str, bytes]]:
    """The folder of a module's top-level package, and all of that package with what it imports."""
    top = module.__name__.partition(".")[0]
    file = Path(module.__file__ or "").resolve()
    if top == "s4node":
        raise PackageError(f"{module.__name__} is a part of s4node; deploy an app of your own")
    depth = len(module.__name__.split("."))
    is_package = file.name == "__init__.py"
    root = file.parents[depth - 1 + is_package]
    start = [file] if depth == 1 and not is_package else list(_files_in(root / top))
    return root, _closure(start, root)


def _closure(start: list[Path], root: Path) -> dict[str, bytes]:
    """``start``, and the files that they import, by their place in a package."""
    folders = [root, *_own_folders()]
    todo = [(file, root) for file in start]
    seen = set(start)
    files: dict[str, bytes] = {}
    while todo:
        file, folder = todo.pop()
        content = file.read_bytes()
        files.setdefault(archive.SOURCES + file.relative_to(folder).as_posix(), content)
        if file.suffix != ".py" or _is_installed(folder):
            continue
        for name in _imports(content):
            home = next((each for each in folders if _modules_named(name, each)), root)
            more = [path for path in _modules_named(name, home) if path not in seen]
            seen.update(more)
            todo += [(path, home) for path in more]
    return files


def _own_folders() -> list[Path]:
    """Where modules are found that nobody has installed, in the order in which Python looks."""
    paths = [Path(entry or ".").resolve() for entry in sys.path]
    return [path for path in paths if path.is_dir() and not _is_installed(path)]


def _imports(content: bytes) -> set[str]:
    """The top-level names that a source imports anywhere in it."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # who imports it will be told
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - {"s4node"} - sys.stdlib_module_names


def _modules_named(name: str, root: Path) -> list[Path]:
    folder, file = root / name, root / f"{name}.py"
    if folder.is_dir() and any(folder.glob("*.py")):
        return list(_files_in(folder))
    return [file] if file.is_file() else []


def _files_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in _SKIPPED or path.suffix == ".pyc":
            continue
        if path.is_dir():
            yield from _files_in(path)
        elif path.is_file():
            yield path


@cache
def _is_installed(folder: Path) -> bool:
    """True for a folder into which Python and its packages are installed."""
    places = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    places |= {sysconfig.get_config_var("DESTSHARED") or "", f"{sys.base_prefix}/lib"}
    return folder in {Path(place).resolve() for place in places if place}
