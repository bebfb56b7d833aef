"""Spark: a Java to run it on, and local sessions for tests and demos.

Importing this package imports no Spark; its functions ask for the extra ``s4node[spark]`` when they
need it.

It may touch no other room of ours. It starts processes and makes temporary folders.

Begin with ``java``, the only module: ``spark_session`` there is what a program calls.
"""
