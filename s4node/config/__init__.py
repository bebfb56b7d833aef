"""Configuration: every key with its kind, its default and its text, checked and rendered.

``settings`` is the list of all keys, ``key`` the form of an entry. ``kinds`` has the kinds of
values, ``properties`` reads files of ``key = value``, ``config`` checks them and holds the values.
``plugins`` loads what a key names as ``package.module:Class``.

It may touch ``errors`` only. ``paths`` reads the disk; all other modules are pure.

Begin with ``settings``: a key exists because it is in that list.
"""
