"""The receiving side: listener, admission, ports."""
