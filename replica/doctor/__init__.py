"""Examines a participant, before it serves or when something seems wrong. `look` gathers, `checks` judges."""
