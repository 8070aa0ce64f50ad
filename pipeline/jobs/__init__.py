"""Jobs on Spark: what runs where, which files are written, and what comes back to the driver, which is always little.

Tasks exchange what is large through Spark's shuffle and through files in a work folder, which every worker must reach.
"""
