-- The bound up to which completions may be deleted. What is safe was found out on this session, the only one to move it.
UPDATE participant SET pruned_to = :pruned_to
