"""The ``s4`` command: a file a command.

``main`` has all commands and their help. The files that end in ``_parsers``, and
``config_command``, declare the commands of one subject; the file of the same subject does the work.

It may touch every room below it, and the world: standard streams, files, sockets and signals.
Nothing heavy is imported before a command needs it, so ``--help`` is quick.

Begin with ``main``: it says what holds for all commands, such as their exit status. ``send`` is a
short example of one.
"""
