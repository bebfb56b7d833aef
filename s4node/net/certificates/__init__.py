"""Certificates: who peers are, whom this process trusts, and an authority for development.

``identity`` reads what a certificate says about its holder. ``credentials`` are the files with
which a process takes part, and the contexts of TLS that they make. ``authority`` signs certificates
for ``s4 certs``, benchmarks and tests.

It may touch ``config``, ``errors``, ``clocks``, ``tokens`` and ``logger``, and the world: files and
clocks, no trio. ``identity`` is pure.

Begin with ``identity``: it says what names mean.
"""
