"""How far the log went, as marks on disks and at peers: what is compared with the log before anything is written to it.

judging.py      what a mark and the log together mean (pure)
lead.py         how far answers may run ahead of marks on disks (pure)
seen_file.py    the file with this replica's own mark and the newest of each peer's
archived.py     the mark in the archive's manifest
keeper.py       the driver: collects marks, keeps the file, compares them with the log
"""
