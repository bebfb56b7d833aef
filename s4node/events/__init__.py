"""Events, their types on the wire, their keys."""
