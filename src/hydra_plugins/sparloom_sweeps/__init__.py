"""Hydra sweepers that end with a table, figures and the best point as an experiment: a grid, and a search by Optuna.

Hydra imports every module of its plugins at each start, except those whose names begin with an underscore: `grid` and
`search` are the only ones it sees, and nothing here imports Optuna before a search runs.
"""
