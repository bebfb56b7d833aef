"""What authors declare: streams, PEs, tasks; and the dispatch plan made of it."""
