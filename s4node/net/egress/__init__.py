"""The sending side: outboxes, links, senders."""
