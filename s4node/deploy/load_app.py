"""Loading the app that a command names.

Rules
- A target is ``FILE.py`` or ``package.module``, then optionally ``:name`` of an App object or class
  in it.
- Without a name the module must have exactly one: one App object, or else one App class that the
  module defines itself.
- A file is loaded as a module of its own name, with its folder importable. So it cannot have the
  name of a module of Python or of a package that s4node needs: a later import would find the file.
- An exception of the app's code is reported with the line that raised it.
- An app is loaded from a package, too, where it runs; ``pack`` makes packages.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from s4node.app.app import AdapterApp, App
from s4node.cluster.node import package as archive
from s4node.cluster.node.package import Package
from s4node.config.paths import is_file, looking
from s4node.deploy.tracebacks import others_line
from s4node.errors import ConfigError, PackageError, S4Error, described, is_signal

NEEDED = {
    "s4node", "cloudpickle", "cryptography", "h11", "msgspec", "packaging", "pynng", "rich",
    "rocksdict", "structlog", "trio",
}  # fmt: skip
"""s4node itself, and the packages that it requires, without extras: to look them up takes a
thirtieth of the CPU until an app runs."""


def load_app(target: str, folder: str = "") -> App:
    """The app that ``target`` names, or an instance if it is a class; raises ConfigError.

    Modules are found in ``folder`` first, by default the working folder.
    """
    return made_app(find_app(target, folder)[1], target)


def find_app(target: str, folder: str = "") -> tuple[ModuleType, object]:
    """The module that ``target`` names, and the App object or class in it; raises ConfigError."""
    if "://" in target:
        raise ConfigError(
            f"{target} is a URL, but apps are loaded from this machine: download it first, then "
            f"give FILE.py or package.module"
        )
    place, _, name = target.partition(":")
    if place.endswith(".py"):
        module = _load_file(Path(folder, place))
    else:
        module = _load_module(place, folder)
    if name:
        if not hasattr(module, name):
            raise ConfigError(f"{place} has no {name!r}; it has: {', '.join(_apps(module)) or '-'}")
        return module, getattr(module, name)
    objects = {n: v for n, v in vars(module).items() if isinstance(v, App)}
    classes = {
        n: v
        for n, v in vars(module).items()
        if isinstance(v, type)
        and issubclass(v, App)
        and v not in (App, AdapterApp)
        and v.__module__ == module.__name__
    }
    found = objects or classes
    if len(found) == 1:
        return module, next(iter(found.values()))
    if not found:
        raise ConfigError(f"{place} has no App object and no App class; write app = App('name')")
    raise ConfigError(f"{place} has several apps; name one of them, as in {place}:{min(found)}")


def _apps(module: ModuleType) -> list[str]:
    return [
        n
        for n, v in vars(module).items()
        if isinstance(v, App)
        or (isinstance(v, type) and issubclass(v, App) and v not in (App, AdapterApp))
    ]


def made_app(found: object, target: str) -> App:
    """``found`` if it is an App, or an instance if it is an App class; raises ConfigError."""
    if isinstance(found, App):
        return found
    if isinstance(found, type) and issubclass(found, App):
        with loading(target):
            return found()
    raise ConfigError(f"{target} is not an App object or class")


def _load_file(path: Path) -> ModuleType:
    fix = "give a readable Python file, or package.module:App"
    if not is_file(path, fix):
        raise ConfigError(f"no file {path}; give a Python file or package.module:App")
    with looking(path, fix):
        folder = path.resolve().parent
    if _is_needed(path.stem, path):
        raise ConfigError(
            f"{path} would be mistaken for the module {path.stem!r} of Python, of s4node or of a "
            f"package that s4node needs; rename the file"
        )
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with loading(str(path)):
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{path} needs a module that is not installed: {error}") from error
        except ImportError as error:
            if "no known parent package" not in str(error):
                raise
            name, folder = _module_form(path)
            raise ConfigError(
                f"{path} is a module of a package and imports from it; give {name} instead, in the "
                f"folder {folder}"
            ) from error
    return module


def _is_needed(name: str, path: Path) -> bool:
    """Return True for a module of Python, or one that s4node uses now or later."""
    if name in sys.stdlib_module_names or name in NEEDED:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    paths = sysconfig.get_paths()
    return Path(file) != path.resolve() and any(
        Path(file).is_relative_to(paths[kind]) for kind in ("purelib", "platlib")
    )


def _module_form(path: Path) -> tuple[str, Path]:
    """``package.module`` of a file in a package, and the folder that has the package."""
    path = path.resolve()
    parts, folder = [path.parent.name, path.stem], path.parent.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _load_module(name: str, folder: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is not an app; give FILE.py or package.module")
    sys.path.insert(0, folder)
    with loading(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"no module {name!r}: {error}; give FILE.py or package.module"
            ) from error


@contextmanager
def loading(target: str) -> Iterator[None]:
    """Run the app's own code; raises ConfigError for whatever it raises."""
    try:
        yield
    except S4Error:
        raise
    except SyntaxError as error:  # perhaps in a file that the app's file imports
        raise ConfigError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except BaseException as error:
        if is_signal(error):
            raise
        line = others_line(error)
        place = f" ({line})" if line else ""
        raise ConfigError(f"{target} cannot be loaded: {described(error)}{place}") from error


# -- from a package -------------------------------------------------------------------------------


def load_packaged(package: Package, folder: Path) -> App:
    """Load the app of a package, after its sources were written to ``folder``; runs its code.

    Raises PackageError if it was made by another Python, or if a requirement is missing.
    """
    package.check_python()
    manifest = package.manifest
    what = f"app {manifest.name!r}"
    if manifest.requires:
        from s4node.deploy import requirements  # late: it loads much, and most apps have none

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
                f"{what} needs {error.name!r}, which is not installed on this node; install it, "
                f"and declare it in a requirements.txt beside the app"
            ) from error
    app.name = manifest.name
    return app


def _unpickled(package: Package) -> object:
    entry = Path(package.manifest.entry)
    source = package.files.get(archive.SOURCES + entry.name)
    if source is not None:  # tracebacks show its lines, wherever it was loaded
        text = source.decode(errors="replace")
        linecache.cache[str(entry)] = len(text), None, text.splitlines(keepends=True), str(entry)
    return pickle.loads(package.files[archive.PICKLE])  # noqa: S301 - an app runs its own code
