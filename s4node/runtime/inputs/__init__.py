"""The tasks of a job, and what feeds them.

``job_model`` computes the tasks, from the inputs that ``binding`` finds and the groups of
``grouper``. ``port`` brings the frames of producers to tasks, as the batches of ``frame_batches``,
which decode them. ``system_consumers`` reads replayable inputs; ``starting_offsets`` says from
where.

It may touch ``runtime.commit``, ``runtime.task``, ``systems``, ``net``, ``offsets``, ``stages``,
``app``, ``events``, ``config``, ``failpoints``, ``logger`` and ``errors``. ``ports``,
``starting_offsets``, ``startpoints`` and ``system_consumers`` use systems, files or trio; all other
modules are pure.

Begin with ``job_model`` for the tasks, with ``port`` for the path of an event.
"""
