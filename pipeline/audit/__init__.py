"""Audits: does everything that claims to follow from the log follow from it? Findings name the first bad offset."""
