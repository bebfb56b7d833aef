"""Ready PE classes: what authors often need of the events of a key, to be declared or subclassed.

It may touch ``app``, ``events`` and ``errors``. Every module is pure.

Begin with ``aggregates``; ``pairs`` joins two types of events by time.
"""
