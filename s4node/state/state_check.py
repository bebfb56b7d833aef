"""How a new version checks the saved state that it is to use. Pure."""

from __future__ import annotations

import msgspec


class StateCheck(msgspec.Struct, frozen=True):
    """What the state has to fit, and what was agreed to.

    It is that in the folder of a ``savepoint``, or as it is. The PEs and stores named ``unused``
    may have rows that the version does not use. With ``same_keys`` the keys of streams are the same
    ones under another name.
    """

    savepoint: str = ""
    unused: tuple[str, ...] = ()
    same_keys: bool = False


AS_IS = StateCheck()
"""The state as it is, and nothing was agreed to."""
