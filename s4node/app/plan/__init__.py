"""The plan compiled from what authors declare: the loop that brings events to their handlers.

``graph`` checks an app. ``dispatch`` makes the instances of its PEs and compiles the loops of its
streams; ``window_dispatch`` is the share of PEs with windows, and ``pe_costs`` measures PEs by
samples. ``dataflow`` is which streams lead where, and
``cycles`` finds what leads back to itself.

It may touch ``app``, ``events``, ``store_spec`` and ``errors``. Every module is pure.

Begin with ``graph``.
"""
