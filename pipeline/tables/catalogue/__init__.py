"""Registers the tables in a catalogue, so that readers find them by name: each as an external table at its place.

`rules.py` decides, `hive.py` speaks with a metastore, `keeping.py` looks again and again beside a job that appends.
"""
