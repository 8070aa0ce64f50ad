"""Jobs on Spark: what runs where, which files are written, and the small results that return to the driver.

Tasks exchange large data through Spark's shuffle and through files in a work folder, which every worker must reach.
"""
