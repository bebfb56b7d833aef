"""Stages: bounded queues of batches, and what they do when they are full.

``stage`` is the queue, and how far producers may send. ``executors`` decides whether it blocks,
sheds or throttles. ``key_order`` says which events of a parallel stream may begin.

It may touch ``events``, ``config`` and ``errors``. Every module is pure: time is an argument.

Begin with ``stage``. Then read ``executors``: a user may write an ``Executor``, too.
"""
