"""Cost models: networks, boosted trees and simple ones, with training and storage.

`cost_model` has the interfaces and the features of a matrix. `sparseconv` convolves patterns for the networks in
`cognate`; `trees` has models on described features; `performance` predicts times from declared features; `lightning`
trains latent encoders and performance models with Lightning. Names are imported on demand: `performance` needs no
torch.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "cost_model": (
        "CostModel", "Ensemble", "Estimate", "Estimator", "Learner", "MatrixFeatures", "Static", "scale_scores",
        "with_estimate"),
    "sparseconv": (
        "MinkowskiBackend", "SparseBackend", "SparseMap", "StridedMap", "TorchBackend", "build_map",
        "build_strided_map", "conv_flops", "map_flops", "retain_memory"),
    "cognate.checkpoint": ("Checkpoint", "load_checkpoint", "save_checkpoint"),
    "cognate.encoder": (
        "Autoencoder", "AutoencoderNet", "FeatureAugmentation", "FeatureMapping", "FrozenEncoder", "LatentEncoder",
        "PrincipalComponents", "VariationalAutoencoder", "load_encoder", "save_encoder"),
    "cognate.featurizer": (
        "Featurizer", "InputFeaturizer", "MAX_DEVIATIONS", "PatternStatistics", "SideFeatures", "Standardise",
        "WacoFeaturizer", "WindowFeaturizer"),
    "cognate.predictor": ("Predictor", "RecurrentPredictor", "TransformerPredictor", "VectorSequence"),
    "cognate.network": (
        "Cognate", "ConfigurationMapper", "Network", "NoFeaturizer", "NoMapper", "cognate_variant", "initialise"),
    "cognate.waconet": ("LookupTable", "ProgramEmbedder", "WacoNet"),
    "cognate.model": ("CognateModel", "load_convolutions", "load_weights", "restore_cognate"),
    "cognate.training": (
        "RankingModule", "fit", "make_trainer", "order_signs", "ranking_loss", "ranking_quality", "swapped_accuracy"),
    "lightning": (
        "AutoencoderModule", "BoostingModule", "ClosedFormModule", "encoder_module", "train_on_cpu"),
    "surrogate": ("Points", "Posterior", "Priors", "Surrogate", "lowest_and_spread"),
    "trees": ("GaussianProcess", "Trees", "configuration_features"),
})
