"""What tasks keep: key-value stores and PE instances, in one database a task."""
