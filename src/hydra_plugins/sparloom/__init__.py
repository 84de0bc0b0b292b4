"""Plugins of Hydra: the tables of options in conf/options, and the sweepers behind -m.

Hydra imports every module here at each start, so none of them imports Optuna before a search runs.
"""
