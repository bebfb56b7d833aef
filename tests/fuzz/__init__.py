"""Inputs that nobody would send, for everything that decodes what others have written.

``targets`` has a function for each decoder: it takes any bytes, and raises only if a promise does
not hold. ``python -m fuzz`` looks for such bytes with atheris, which is guided by the lines that an
input reaches. ``corpus`` has inputs that together reach what is known, a file for each; a test runs
all of them.
"""
