"""Sockets: frames, the producer's outbox, the node's admission, and the shells that move bytes."""
