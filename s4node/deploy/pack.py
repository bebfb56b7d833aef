"""Packing: makes a package of an app, and loads the app of a package.

Rules
- ``FILE.py`` is packaged as a pickle of what the file defines, or as its source if that cannot be
  pickled. ``package.module`` is packaged as the sources of its whole top-level package.
- Also included, as sources, are the modules that these import, that were imported while the app was
  created, and that settings name as ``package.module:Class``, from any folder into which no
  packages are installed. On the node they are found before anything else.
- A module that ``import_module("name")`` names is one of these; it is refused if there is none.
- So are files and folders that a source with ``__file__`` names.
- Installed packages are not included. A ``pyproject.toml`` or ``requirements.txt`` beside the app
  declares them, and the node checks them before it loads anything.
- A target that is not an app is refused here, before anything is sent.
"""

from __future__ import annotations

import ast
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec

from s4node.cluster.node import package as archive
from s4node.cluster.node.package import Manifest, Package
from s4node.config.kinds import is_file_name
from s4node.config.paths import check_travels
from s4node.deploy import pickling, requirements
from s4node.deploy.load_app import find_app, made_app
from s4node.errors import PackageError
from s4node.version import __version__

_SKIPPED = {"__pycache__", "node_modules"}
_NOT_OWN = {"s4node", *sys.stdlib_module_names}


def pack(
    target: str, *, name: str = "", version: str = "", settings: Mapping[str, str] | None = None
) -> Package:
    """Package the app that ``target`` names; raises ConfigError, PackageError.

    ``settings`` are included under their keys. The default version is a hash of the contents.
    """
    before = set(sys.modules)
    module, found = find_app(target)
    app = made_app(found, target)
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    more = (loaded | _named_in(settings or {})) - _NOT_OWN
    file = Path(module.__file__ or "").resolve()
    kind: Literal["pickle", "source"] = "source"
    if target.partition(":")[0].endswith(".py"):
        root = file.parent
        files = _closure([file], root, more)
        entry = f"{file.name}:{_name_in(module, found)}"
        with suppress(PackageError):
            files[archive.PICKLE] = pickling.dumps(found, module)
            kind, entry = "pickle", str(file)
    else:
        root, files = _sources_of(module, more)
        entry = f"{module.__name__}:{_name_in(module, found)}"
    manifest = Manifest(
        name=name or app.name,
        version=version,
        kind=kind,
        entry=entry,
        python=archive.python_here(),
        s4node=__version__,
        requires=requirements.declared(each for each in file.parents if each.is_relative_to(root)),
        settings=dict(settings or {}),
    )
    for path in (entry, *files):
        check_travels(path)
    size = sum(map(len, files.values()))
    if size > archive.MAX_BYTES:
        raise PackageError(
            f"{target} has {size} bytes of files, and at most {archive.MAX_BYTES} are allowed; "
            f"keep data out of the app's folder"
        )
    if not version:
        version = archive.content_version(manifest, files)
        manifest = msgspec.structs.replace(manifest, version=version)
    manifest.check_names()
    return Package(manifest, files)


def _name_in(module: ModuleType, found: object) -> str:
    return next(name for name, value in vars(module).items() if value is found)


# -- files of a package ---------------------------------------------------------------------------


def _named_in(settings: Mapping[str, str]) -> set[str]:
    """The top-level names of modules that settings name as ``package.module:Class``."""
    named = (name.strip() for text in settings.values() for name in text.split(","))
    return {name.partition(":")[0].partition(".")[0] for name in named if ":" in name}


def _sources_of(module: ModuleType, more: set[str]) -> tuple[Path, dict[str, bytes]]:
    """The folder of a module's top-level package, and the files to pack. Those are the package's,
    with the files of what it imports and of the modules called ``more``."""
    top = module.__name__.partition(".")[0]
    file = Path(module.__file__ or "").resolve()
    if top == "s4node":
        raise PackageError(f"{module.__name__} is a part of s4node; deploy your own app")
    depth = len(module.__name__.split("."))
    is_package = file.name == "__init__.py"
    root = file.parents[depth - 1 + is_package]
    start = [file] if depth == 1 and not is_package else list(_files_in(root / top))
    return root, _closure(start, root, more)


def _closure(start: list[Path], root: Path, more: set[str]) -> dict[str, bytes]:
    """The files to pack, by path in the package. They are ``start``, the modules called ``more``,
    and all that these need."""
    seen: set[Path] = set()
    todo: list[tuple[Path, Path]] = []

    def add(paths: Iterable[Path], folder: Path) -> None:
        new = [path for path in paths if path not in seen]
        seen.update(new)
        todo.extend((path, folder) for path in new)

    def add_modules(names: Iterable[str]) -> None:
        for name in names:
            home = root if _modules_named(name, root) else _home_of(name)
            if home is not None:
                add(_modules_named(name, home), home)

    add(start, root)
    add_modules(more)
    files: dict[str, bytes] = {}
    while todo:
        file, folder = todo.pop()
        content = file.read_bytes()
        files.setdefault(archive.SOURCES + file.relative_to(folder).as_posix(), content)
        if file.suffix != ".py" or _is_installed(folder):
            continue
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):  # importing it reports this
            continue
        add_modules(_imports(tree))
        add_modules(_imported_by_text(file, tree))
        add(_files_beside(file, tree), folder)
    return files


def _imports(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - _NOT_OWN


def _imported_by_text(file: Path, tree: ast.Module) -> set[str]:
    """The top-level names that a source imports by ``import_module("name")``. Raises PackageError
    if there is no such module, which only an event would find out."""
    names: set[str] = set()
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    caught = {node for each in tries for line in each.body for node in ast.walk(line)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(name))],
            ):
                top = name.partition(".")[0]
                if node not in caught and top not in sys.modules and _spec_of(top) is None:
                    raise PackageError(
                        f"{file}:{node.lineno}: import_module({name!r}) finds no module {top!r} "
                        f"here, and would fail on a node; correct the name, or install the module"
                    )
                names.add(top)
    return names - _NOT_OWN


def _spec_of(name: str) -> ModuleSpec | None:
    with suppress(ImportError, ValueError):  # a module that was made by hand has no spec
        return find_spec(name)
    return None


def _home_of(name: str) -> Path | None:
    """The folder from which a module is imported; None if it is installed there, or there is none.

    A module that is installed in editable form may be in no folder of the path.
    """
    spec = _spec_of(name)
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    folder = Path(place).resolve().parent if place else None
    return folder if folder is not None and not _is_installed(folder) else None


def _files_beside(file: Path, tree: ast.Module) -> Iterator[Path]:
    """The files, and the files of folders, that a source with ``__file__`` names."""
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes):
        return
    for text in {node.value for node in nodes if isinstance(node, ast.Constant)}:
        if not isinstance(text, str) or not is_file_name(text.partition("/")[0]):
            continue
        path = file.parent / text
        with suppress(OSError, ValueError):  # the text is not a path
            if path.is_dir():
                yield from _files_in(path)
            elif path.is_file():
                yield path


def _modules_named(name: str, root: Path) -> list[Path]:
    folder, file = root / name, root / f"{name}.py"
    if folder.is_dir() and (any(folder.glob("*.py")) or _is_namespace(name, folder)):
        return list(_files_in(folder))
    return [file] if file.is_file() else []


def _is_namespace(name: str, folder: Path) -> bool:
    """Return True if a folder without modules of its own is imported as a package."""
    spec = _spec_of(name)
    places = spec.submodule_search_locations if spec is not None and spec.origin is None else None
    return folder.resolve() in {Path(each).resolve() for each in places or ()}


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
    places = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    places |= {sysconfig.get_config_var("DESTSHARED") or "", f"{sys.base_prefix}/lib"}
    return folder in {Path(place).resolve() for place in places if place}
