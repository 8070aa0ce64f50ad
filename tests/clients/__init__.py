"""Clients in other languages, built by `make clients`, against servers of this repository."""
