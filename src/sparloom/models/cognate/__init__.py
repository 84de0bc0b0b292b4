"""COGNATE's network and its parts, and WACO's.

A configuration is coded by `encoder`, a matrix by `featurizer`; `network` joins both with a `predictor` (`waconet` is
the network of WACO). `training` fits a network, `checkpoint` stores it, `model` makes a cost model of it.
"""
