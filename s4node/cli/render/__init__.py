"""The text that ``s4 graph``, ``s4 status`` and ``s4 top`` show to people.

``diagram`` says what a graph of an app shows; ``mermaid`` writes it as Mermaid text. ``dashboard``
shows a cluster, ``terminal`` does so at a terminal.

It may touch ``app``, ``deploy`` (the snapshot of a cluster) and ``errors``. Only ``terminal`` knows
rich. The others print nothing.

Begin with ``dashboard``.
"""
