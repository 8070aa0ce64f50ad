"""A second implementation of docs/format-1.0.md. It imports nothing of the product, and makes the golden vectors."""
