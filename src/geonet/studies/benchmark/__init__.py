"""Error against time of every solver, on the same pairs and against one truth."""
