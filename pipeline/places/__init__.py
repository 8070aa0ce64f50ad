"""Where the pipeline keeps its files: stores of objects that are written once, with one interface and adapters.

    store.py    the interface, and how an object is kept in spite of lost answers
    objects.py  object stores: S3 and what speaks its protocol, Azure
    hdfs.py     HDFS, without a JVM
    open.py     the store that a URL names
    file.py     an object as a file

Above it, pipeline/archive/layout.py keeps an archive in such a store.
"""
