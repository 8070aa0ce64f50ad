"""The data pipeline on Spark: archive, restore, rebuild, audit and report, all from the request log.

    session.py   makes the Spark session: one place that knows jars, time zone and Python
    records.py   rows of the log as typed columns, by the replica's own decoding and void rule
    sources/     the request log as a DataFrame: Spark's own connector, and one over confluent-kafka
    archive/     the log as Parquet files with a signed manifest: write, verify, restore, copy

Nothing that serves requests imports this package.
"""
