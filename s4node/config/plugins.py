"""Plugins: the author's own classes, which a setting names as ``package.module:Class``. Pure.

Rules
- An error of importing or calling a plugin says which setting named it, and why.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from s4node.errors import ConfigError, described, is_signal


def found(
    named: str, setting: str, what: str, where: str = "importable where the node runs"
) -> Any:
    """Import what ``named`` means; ``what`` describes it in messages, ``where`` the place of its
    module. Raises ConfigError if that fails."""
    module, _, name = named.partition(":")
    if not (module and name):
        raise ConfigError(
            f"{what} {named!r} of {setting} lacks {'the class' if module else 'the module'}; name "
            f"it as package.module:Class, {where}"
        )
    try:
        return getattr(import_module(module), name)
    except BaseException as error:
        if is_signal(error):
            raise
        raise ConfigError(
            f"{what} {named!r} of {setting} cannot be imported: {described(error)}; "
            f"name it as package.module:Class, {where}"
        ) from error


def made(named: str, setting: str, what: str, *arguments: Any) -> Any:
    """Import ``named`` and call it with ``arguments``; raises ConfigError if that fails."""
    maker = found(named, setting, what)
    try:
        return maker(*arguments)
    except BaseException as error:
        if is_signal(error):
            raise
        given = ", ".join(type(argument).__name__ for argument in arguments) or "nothing"
        raise ConfigError(
            f"{what} {named!r} of {setting} cannot be created: {described(error)}; it is "
            f"called with {given}"
        ) from error


def lacking(part: object, methods: tuple[str, ...], named: str, setting: str, what: str) -> None:
    missing = [name for name in methods if not callable(getattr(part, name, None))]
    if missing:
        raise ConfigError(
            f"{what} {named!r} of {setting} has no {', '.join(missing)}; it needs "
            f"{', '.join(methods)}"
        )
