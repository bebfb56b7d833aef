"""What nodes share: the tree, members, assignments."""
