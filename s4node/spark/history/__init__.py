"""History into state: an app's PEs run over years of events on Spark, and nodes go on from there.

``stages`` says what runs when and what does not fit, ``replay`` runs PEs in a task of Spark,
``due_calls`` their windows and timers, ``bootstrap`` puts the stages together, ``savepoint`` writes
the result, and ``outputs`` what PEs have put on output streams.

It may touch ``spark``, ``runtime``, ``savepoints``, ``state``, ``offsets``, ``app``, ``events``,
``config`` and ``errors``, and the world: Spark, files and temporary folders.

Begin with ``bootstrap``.
"""
