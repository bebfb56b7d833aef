"""Makes a package of an app, and loads the app of a package.

Rules
- ``FILE.py`` goes as a pickle of what the file defines; what it imports from its own folder goes
  along as sources. ``package.module`` goes as the sources of its whole top-level package, and of
  what that imports from beside it.
- What is installed (s4node itself and all libraries) does not go along; it must be on the nodes.
- Whether a target is an app is found out here, before anything is sent.
"""

from __future__ import annotations

import ast
import linecache
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import cloudpickle

from s4node import __version__
from s4node.app.app import App
from s4node.cluster.node import package as archive
from s4node.cluster.node.package import Manifest, Package
from s4node.config.paths import check_travels
from s4node.deploy import pickling
from s4node.deploy.load_app import find_app, load_app, loading, made_app
from s4node.errors import PackageError

_SKIPPED = {"__pycache__", "node_modules"}


def pack(
    target: str, *, name: str = "", version: str = "", settings: Mapping[str, str] | None = None
) -> Package:
    """The package of the app that ``target`` names; raises ConfigError, PackageError.

    ``settings`` go along under their keys. Without a version it gets one of its content.
    """
    module, found = find_app(target)
    app = made_app(found, target)
    by_value = target.partition(":")[0].endswith(".py")
    if by_value:
        files = _sources_beside(module)
        files[archive.PICKLE] = pickling.dumps(found, module)
        entry = str(Path(module.__file__ or "").resolve())
    else:
        files = _sources_of(module)
        entry = f"{module.__name__}:{_name_in(module, found)}"
    manifest = Manifest(
        name=name or app.name,
        version=version,
        kind="pickle" if by_value else "source",
        entry=entry,
        python=archive.python_here(),
        s4node=__version__,
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
    sys.path.insert(0, str(package.unpack(folder)))
    what = f"app {manifest.name!r}"
    with loading(what):
        try:
            if manifest.kind == "source":
                app = load_app(manifest.entry)
            else:
                app = made_app(_unpickled(package), what)
        except ModuleNotFoundError as error:
            raise PackageError(
                f"{what} needs {error.name!r}, which this node has not; install it here"
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


def _sources_beside(module: ModuleType) -> dict[str, bytes]:
    """The file of a module, and what it imports from its folder."""
    file = Path(module.__file__ or "").resolve()
    return _closure([file], file.parent)


def _sources_of(module: ModuleType) -> dict[str, bytes]:
    """The whole top-level package of a module, and what it imports from beside it."""
    top = module.__name__.partition(".")[0]
    file = Path(module.__file__ or "").resolve()
    if top == "s4node":
        raise PackageError(f"{module.__name__} is a part of s4node; deploy an app of your own")
    depth = len(module.__name__.split("."))
    is_package = file.name == "__init__.py"
    root = file.parents[depth - 1 + is_package]
    start = [file] if depth == 1 and not is_package else list(_files_in(root / top))
    return _closure(start, root)


def _closure(start: list[Path], root: Path) -> dict[str, bytes]:
    """``start``, and the files below ``root`` that they import, by their place in a package."""
    installed = _is_installed(root)
    todo, seen = list(start), set(start)
    files: dict[str, bytes] = {}
    while todo:
        file = todo.pop()
        files[archive.SOURCES + file.relative_to(root).as_posix()] = content = file.read_bytes()
        if file.suffix != ".py" or installed:
            continue
        for name in _imports(content):
            more = [path for path in _modules_named(name, root) if path not in seen]
            seen.update(more)
            todo += more
    return files


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


def _is_installed(root: Path) -> bool:
    places = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    return str(root) in {str(Path(place).resolve()) for place in places}
