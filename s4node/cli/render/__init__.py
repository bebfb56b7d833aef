"""The text that ``s4 graph``, ``s4 status`` and ``s4 top`` show to people.

``diagram`` says what a drawing of an app shows; ``picture`` draws it with characters, ``mermaid``
writes it as Mermaid text. ``dashboard`` shows a cluster.

It may touch ``app``, ``deploy`` (the snapshot of a cluster) and ``errors``. Only ``dashboard``
writes to a terminal, through rich; the others are pure.

Begin with ``diagram``: both drawings are made from it.
"""
