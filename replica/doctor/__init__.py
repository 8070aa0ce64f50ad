"""Looks a participant over before it serves, and whenever something seems wrong. `look` gathers, `checks` judges."""
