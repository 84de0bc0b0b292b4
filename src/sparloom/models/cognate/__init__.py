"""The networks of COGNATE and WACO, and their parts.

`featurizer` embeds a matrix and `encoder` a configuration; `network` joins both in a `predictor` (`waconet` is WACO's
network). `training` fits a network, `checkpoint` stores it, and `model` wraps it as a cost model.
"""
