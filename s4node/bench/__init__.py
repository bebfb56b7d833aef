"""The benchmarks of ``s4 bench``, each compared with a limit measured in the same run.

Each file is one benchmark, or a part that several share: ``workload`` makes the events, ``roles``
has the work of the started processes, ``process`` starts them, ``result`` holds a measurement.

It may touch every room below it, and the world: processes, sockets, disks and clocks. No other room
but ``cli`` imports it.

Begin with ``command``: it lists all benchmarks. ``keyed_count`` is the plainest of them.
"""
