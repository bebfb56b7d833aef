"""The benchmarks of ``make bench``, each compared with a limit measured in the same run.

``__main__`` lists all of them, and has the function of each; ``keyed_count`` is the plainest. What
they are made of is in ``runner``: runs in turn, the processes of roles, results. ``role`` is such a
process. ``workload`` makes the events. ``nodes``, ``servers`` and ``delay_line`` have the clusters,
ZooKeepers and stores of ``failover`` and ``scale``.

``nng_protocols`` and ``tuning`` are programs of their own. The package ``s4node`` knows nothing of
this folder, which no installation has.
"""
