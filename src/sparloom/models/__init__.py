"""Cost models: networks, trees and simple ones, how they are trained and stored.

Names are imported when they are asked for: `sparloom.models.performance` needs no torch.
"""

import importlib

_HOMES = {
    "Autoencoder": "autoencoder",
    "Checkpoint": "checkpoint",
    "Cognate": "cognate",
    "CognateModel": "cognate_model",
    "ConfigurationMapper": "mapper",
    "CostModel": "cost_model",
    "Ensemble": "ensemble",
    "Familiarity": "familiarity",
    "FeatureAugmentation": "padding",
    "FeatureMapping": "padding",
    "Featurizer": "featurizer",
    "FrozenEncoder": "encoder",
    "GaussianProcess": "gaussian",
    "InputFeaturizer": "input_featurizer",
    "LatentEncoder": "encoder",
    "KernelCosts": "kernel_costs",
    "Learner": "ensemble",
    "LookupTable": "program",
    "MatrixView": "view",
    "MinkowskiBackend": "sparseconv",
    "Network": "network",
    "NoFeaturizer": "ablation",
    "NoMapper": "ablation",
    "Predictor": "predictor",
    "PrincipalComponents": "principal",
    "ProgramEmbedder": "program",
    "RankingModule": "module",
    "RecurrentPredictor": "recurrent",
    "SideFeatures": "side",
    "SparseBackend": "sparseconv",
    "SparseMap": "sparseconv",
    "Standardise": "standardise",
    "Static": "cost_model",
    "StridedMap": "sparseconv",
    "TorchBackend": "sparseconv",
    "TransformerPredictor": "transformer",
    "Trees": "trees",
    "VariationalAutoencoder": "variational",
    "VectorSequence": "sequence",
    "WacoFeaturizer": "waco_featurizer",
    "WacoNet": "waconet",
    "build_map": "sparseconv",
    "build_strided_map": "sparseconv",
    "cognate_with_featurizer": "ablation",
    "cognate_without": "ablation",
    "conv_flops": "sparseconv",
    "fill": "cognate_model",
    "fit": "trainer",
    "how_familiar": "familiarity",
    "initialise": "network",
    "load_checkpoint": "checkpoint",
    "load_encoder": "encoder_file",
    "make_trainer": "trainer",
    "map_flops": "sparseconv",
    "norm_of": "standardise",
    "order_signs": "ranking",
    "ranking_loss": "ranking",
    "ranking_quality": "ranking",
    "retain_memory": "sparseconv",
    "save_checkpoint": "checkpoint",
    "save_encoder": "encoder_file",
    "swapped_accuracy": "probe",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"sparloom.models.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sparloom.models' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_HOMES))
