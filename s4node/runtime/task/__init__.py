"""The task: what runs next, and what runs it. Pure."""
