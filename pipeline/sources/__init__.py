"""The request log as a DataFrame. `log_frame` is all that jobs use; which of the two sources reads it is an option."""
