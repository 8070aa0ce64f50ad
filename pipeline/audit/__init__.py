"""Audits: compare everything that is derived from the log with the log. Findings name the first bad offset."""
