"""Index checkpoints at a second site.

ship.py    shipped, verified, and made a replica's index
layout.py  how one is kept in its place: in a folder, or in a store of objects
"""
