"""Running nodes: the command line, health and metrics over HTTP, the status page, logging.

Rules: this folder may import every other one, and no other imports it.
"""
