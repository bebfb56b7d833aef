"""The ``s4`` command: one file for each command.

``main`` lists the commands. A command's file, or that of several commands on one subject, has their
arguments and their work; ``arguments`` has options that several share, ``job`` and ``running_apps``
find the job or app that a command means.

It may touch every room below it, and the world: standard streams, files, sockets and signals. Only
the file of the requested command is imported, so ``s4 --help`` is quick.

Begin with ``main``: it has the rules for all commands, such as their exit status. ``send`` is a
short example of one.
"""
