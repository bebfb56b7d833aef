"""One connection: nng sockets through trio."""
