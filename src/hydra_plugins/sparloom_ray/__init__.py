"""Hydra launcher for Ray, in place of hydra-ray-launcher.

That one needs a cloudpickle that joblib 1.6 refuses, and loses all results of a batch when one worker dies.
"""
