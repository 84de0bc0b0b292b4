"""Hydra sweeper that searches with Optuna: an SQLite study that outlives the process, jobs through any launcher.

Hydra imports every module of its plugins at each start, except those whose names begin with an underscore: `sweeper`
is the only one it sees, and nothing here imports Optuna before a sweep runs.
"""
