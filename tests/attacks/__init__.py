"""Peers that want to harm a node, beside a healthy sender, and compared with honest peers.

``rows`` has what they do. They run in a process of their own, at nice 19 (``python -m attacks
ADDRESS ROW SECONDS``). ``compare`` measures a healthy sender beside them, and beside honest peers
that send as many frames; ``make attacks`` does that for all rows, for long.
"""
