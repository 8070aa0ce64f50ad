"""Reports: load, conflicts, parties and fail-over from the log, and latency from telemetry.

tables.py    DataFrame → DataFrame: one function for each table, all of bounded size
telemetry.py what clients measured: latency, and estimates against it
charts.py    tables → SVG
report.py    the job: Parquet for programs, one self-contained page for people
folder.py    where it is made, and how it is brought to a store of objects
"""
