"""Overrides that make a run take seconds."""

SMALL = (
    "samples=tiny", "samples.configs=256", "trainer=smoke", "logger=none", "encoder.epochs=20",
    "model.net.featurizer.channels=[4,4,8,8,8,8,8,8,8,8,8,8]", "trees.bags=2", "trees.rounds=20",
)
