"""The recovery drill: failures one after the other, and what each cost, measured."""
