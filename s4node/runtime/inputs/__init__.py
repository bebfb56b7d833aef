"""Which tasks there are, and what feeds them."""
