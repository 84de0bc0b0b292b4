"""Operators and layers written in the language of ragged programs, with their schedules."""
