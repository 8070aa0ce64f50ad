"""High availability: who leads. Imports nothing of ours, and knows nothing of notaries."""
