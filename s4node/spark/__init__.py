"""Spark: a Java to run it on, and local sessions for tests and demos.

Importing this package imports no Spark; its functions ask for the extra ``s4node[spark]`` when they
need it.
"""
