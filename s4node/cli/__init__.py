"""The ``s4`` command: a file a command.

``main`` has the list of commands. The file of a command, or of several of one subject, has their
arguments and their work; ``arguments`` has what several take, ``job`` and ``running_apps`` what
several look up.

It may touch every room below it, and the world: standard streams, files, sockets and signals.
Only the file of the command that is asked for is imported, so ``s4 --help`` is quick.

Begin with ``main``: it says what holds for all commands, such as their exit status. ``send`` is a
short example of one.
"""
