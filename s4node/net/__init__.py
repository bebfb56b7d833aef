"""Everything that goes over sockets."""
