"""The log node: its disk, its links, and real nodes as processes."""
