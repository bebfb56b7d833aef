"""Finds the app that a command names.

Rules
- ``FILE.py`` or ``package.module``, then optionally ``:name`` of an App object or class in it.
- Without a name the module must hold exactly one: one App object, or else one App class that the
  module defines itself.
- A file is loaded as a module of its own name, with its folder importable.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from s4node.app import AdapterApp, App
from s4node.errors import ConfigError


def load_app(target: str) -> App:
    """The app that ``target`` names, made anew if it is a class; raises ConfigError."""
    return made_app(find_app(target)[1], target)


def find_app(target: str) -> tuple[ModuleType, object]:
    """The module that ``target`` names, and the App object or class in it; raises ConfigError."""
    place, _, name = target.partition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
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
    raise ConfigError(f"{place} has several apps: name one as {place}:{min(found)}")


def _apps(module: ModuleType) -> list[str]:
    return [
        n
        for n, v in vars(module).items()
        if isinstance(v, App)
        or (isinstance(v, type) and issubclass(v, App) and v not in (App, AdapterApp))
    ]


def made_app(found: object, target: str) -> App:
    """``found`` if it is an App, or one of it if it is an App class; raises ConfigError."""
    if isinstance(found, App):
        return found
    if isinstance(found, type) and issubclass(found, App):
        return found()
    raise ConfigError(f"{target} is not an App object or class")


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"no file {path}; give a Python file or package.module:App")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise _unreadable(error) from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path} needs a module that is not installed: {error}") from error
    return module


def _unreadable(error: SyntaxError) -> ConfigError:
    """The file may be one that the app's own file imports."""
    return ConfigError(f"{error.filename}:{error.lineno}: {error.msg}")


def _load_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is no app; give FILE.py or package.module")
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        raise _unreadable(error) from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"no module {name!r}: {error}; give FILE.py or package.module") from error
