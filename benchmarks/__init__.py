"""The benchmarks of ``make bench``, each compared with a limit measured in the same run.

Each file is one benchmark, or a part that several share: ``workload`` makes the events, ``roles``
has the work of the started processes, ``process`` starts them, ``result`` holds a measurement.

``nng_protocols`` and ``tuning`` are programs of their own. The package ``s4node`` knows nothing of
this folder, which no installation has.

Begin with ``__main__``: it lists all benchmarks. ``keyed_count`` is the plainest of them.
"""
