"""Configuration: every key with its kind, its default and its text; checked and rendered.

``settings`` is the list of all keys, ``key`` what each of them has. ``kinds`` says what values they
take, ``properties`` reads files of ``key = value``, ``config`` checks them and holds the values.
``plugins`` loads what a key names as ``package.module:Class``.

It may touch ``errors`` only. ``paths`` looks at the disk; all other modules are pure.

Begin with ``settings``: a key exists because it stands there.
"""
