"""Cost models: networks, trees and simple ones, how they are trained and stored."""

from sparloom.models.ablation import NoFeaturizer, NoMapper, cognate_with_featurizer, cognate_without
from sparloom.models.autoencoder import Autoencoder
from sparloom.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sparloom.models.cognate import Cognate
from sparloom.models.cognate_model import CognateModel, fill
from sparloom.models.cost_model import CostModel, Static
from sparloom.models.encoder import FrozenEncoder, LatentEncoder
from sparloom.models.encoder_file import load_encoder, save_encoder
from sparloom.models.ensemble import Ensemble, Learner
from sparloom.models.familiarity import Familiarity, how_familiar
from sparloom.models.featurizer import Featurizer
from sparloom.models.gaussian import GaussianProcess
from sparloom.models.input_featurizer import InputFeaturizer
from sparloom.models.mapper import ConfigurationMapper
from sparloom.models.module import RankingModule
from sparloom.models.network import Network, initialise
from sparloom.models.padding import FeatureAugmentation, FeatureMapping
from sparloom.models.predictor import Predictor
from sparloom.models.principal import PrincipalComponents
from sparloom.models.probe import swapped_accuracy
from sparloom.models.program import LookupTable, ProgramEmbedder
from sparloom.models.ranking import order_signs, ranking_loss, ranking_quality
from sparloom.models.recurrent import RecurrentPredictor
from sparloom.models.sequence import VectorSequence
from sparloom.models.side import SideFeatures
from sparloom.models.sparseconv import (
    MinkowskiBackend,
    SparseBackend,
    SparseMap,
    StridedMap,
    TorchBackend,
    build_map,
    build_strided_map,
    conv_flops,
    map_flops,
    retain_memory,
)
from sparloom.models.standardise import Standardise, norm_of
from sparloom.models.trainer import fit, make_trainer
from sparloom.models.transformer import TransformerPredictor
from sparloom.models.trees import Trees
from sparloom.models.variational import VariationalAutoencoder
from sparloom.models.view import MatrixView
from sparloom.models.waco_featurizer import WacoFeaturizer
from sparloom.models.waconet import WacoNet

__all__ = [
    "Autoencoder", "Checkpoint", "Cognate", "CognateModel", "ConfigurationMapper", "CostModel", "Ensemble",
    "Familiarity", "FeatureAugmentation", "FeatureMapping", "Featurizer", "FrozenEncoder", "GaussianProcess",
    "InputFeaturizer", "LatentEncoder", "Learner", "LookupTable", "MatrixView", "MinkowskiBackend", "Network",
    "NoFeaturizer", "NoMapper", "Predictor", "PrincipalComponents", "ProgramEmbedder", "RankingModule",
    "RecurrentPredictor", "SideFeatures", "SparseBackend", "SparseMap", "Standardise", "Static", "StridedMap",
    "TorchBackend", "TransformerPredictor", "Trees", "VariationalAutoencoder", "VectorSequence", "WacoFeaturizer",
    "WacoNet", "build_map", "build_strided_map", "cognate_with_featurizer", "cognate_without", "conv_flops", "fill",
    "fit", "how_familiar", "initialise", "load_checkpoint", "load_encoder", "make_trainer", "map_flops", "norm_of",
    "order_signs", "ranking_loss", "ranking_quality", "retain_memory", "save_checkpoint", "save_encoder",
    "swapped_accuracy",
]
