"""The request log as files: Parquet segments named by their offsets, and a signed manifest that names them.

    segment.py    one segment: a Parquet file with the records, and a file with the digest of each
    layout.py     how an archive is kept: the files of a folder, or objects that are written once
    lines.py      a manifest's lines as objects
    manifest.py   the chain of entries, one a segment, and its signatures
    write.py      the job: from the log into segments, exactly once
    verify.py     whether anything was lost, reordered or edited, and where first
    restore.py    a topic from an archive, at the same offsets
    copy.py       a second site's copy of the archive

The manifest's newest head is also in the shared database (replica/store/archive_head.py), so that a cut tail shows.
Reading and verifying need pyarrow only: no Spark, no broker, no database.
"""
