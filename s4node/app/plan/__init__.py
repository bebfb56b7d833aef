"""The plan compiled from what authors declare: the loop that brings events to their handlers.

``graph`` checks an app, makes the instances of its PEs, and compiles the dispatch of its streams;
``window_dispatch`` is the share of PEs with windows. ``dataflow`` is which streams lead where, and
``cycles`` finds what leads back to itself.

It may touch ``app``, ``events``, ``store_spec`` and ``errors``. Every module is pure.

Begin with ``graph``.
"""
