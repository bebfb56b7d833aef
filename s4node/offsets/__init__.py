"""Offsets: how far each input has been processed, and where reading begins.

``input_progress`` follows one task in one input; ``checkpoint`` is what a commit saves of
that, and of producers.
``startpoint`` says where a reader may begin. ``task_claims`` decides which owner may write.
``deaths`` counts the owners that have died in a row.
``system`` is the contract of the systems that inputs are read from.

It may touch ``events``, ``config``, ``disk``, ``failpoints`` and ``errors``. ``job_lock``,
``sqlite_file``, ``death_files`` and ``task_claims`` use files, locks and clocks; all other modules
are pure.

Begin with ``LowWatermark`` in ``receipts``, and ``input_progress``, which is built on it.
"""
