"""Which of two sites may serve: a term that a witness keeps outside both."""
