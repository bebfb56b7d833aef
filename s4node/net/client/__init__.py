"""Programs outside: clients and subscriptions."""
