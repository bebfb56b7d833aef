"""The command line: the ``s4`` command, with a file for each of its commands.

``main`` lists the commands. The file of a command, or of several on one subject, has their
arguments and does their work. ``arguments`` has options that several commands share; ``job`` and
``running_apps`` find the job or the app that a command is about.

It may touch every room below it, and the world: standard streams, files, sockets and signals. Only
the file of the requested command is imported, so ``s4 --help`` is quick.

Begin with ``main``: it has the rules for all commands, such as their exit status. ``send`` is a
short example of one.
"""
