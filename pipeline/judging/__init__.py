"""The notary's judgement, in parallel over slices: the same result as a replica's that reads the log from its start.

Pure functions over numpy columns; Spark only carries them (`pipeline.jobs`). In the order in which they are used:
`columns` decodes a slice of the log, `survey` and `plan` apply the void rule across slices, `claims` lists what each
record wants, `contested` finds and decides what more than one record wants, `entries` is what is left: the index.
"""
