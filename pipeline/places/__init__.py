"""Where the pipeline keeps its files: stores of objects that are written once, with one interface and adapters.

    store.py    the interface, and how an object is kept in spite of lost answers
    folder.py   a local folder

Above it, pipeline/archive/lines.py keeps an archive's manifest in such a store.
"""
