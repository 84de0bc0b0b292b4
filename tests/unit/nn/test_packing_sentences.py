"""Embedding models and rerankers of sentence-transformers on packed tokens."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")

from sentence_transformers.sentence_transformer import modules  # noqa: E402

from sparloom.nn import describe_packing, pack, unpack  # noqa: E402

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "small", "cat", "sat", "on", "the", "mat", "quietly")
SIZES = {"vocab_size": len(WORDS), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 40, "initializer_range": 0.3}
TEXTS = ["a small cat sat on the mat", "the mat", "quietly", "", "cat " * 30]


DECODER = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[transformers.PreTrainedModel], str]:
    """Save a model with a tokenizer, and return the folder."""
    def save(model: transformers.PreTrainedModel) -> str:
        path = tmp_path_factory.mktemp("model")
        (path / "vocab.txt").write_text("\n".join(WORDS))
        model.save_pretrained(path)
        transformers.BertTokenizer(vocab=str(path / "vocab.txt")).save_pretrained(path)
        return str(path)

    return save


@pytest.fixture(scope="module")
def folder(folders) -> str:
    """A model folder with random weights and a tokenizer."""
    torch.manual_seed(0)
    return folders(transformers.BertModel(transformers.BertConfig(**SIZES)))


def sentence_model(folder: str, mode: str) -> torch.nn.Module:
    return sentence_transformers.SentenceTransformer(modules=[
        modules.Transformer(folder), modules.Pooling(24, pooling_mode=mode), modules.Normalize()], device="cpu")


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
def test_embeddings_are_those_of_before(folder: str, mode: str) -> None:
    model = sentence_model(folder, mode)
    expected = model.encode(TEXTS, batch_size=3)
    assert np.ptp(expected, axis=0).max() > 0.1
    assert pack(model) is model
    assert describe_packing(model).packed == ("0.model",)
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=3), expected, atol=1e-6)
    np.testing.assert_allclose(unpack(model).encode(TEXTS), expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["mean", "weightedmean", "lasttoken"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["Qwen3", "Gemma3Text"])
def test_embeddings_of_decoders_are_those_of_before(folders, kind: str, side: str, mode: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**DECODER)
    model = sentence_model(folders(getattr(transformers, f"{kind}Model")(config)), mode)
    model.tokenizer.padding_side = side
    expected = model.encode(TEXTS, batch_size=3)
    assert np.ptp(expected, axis=0).max() > 0.1
    assert describe_packing(pack(model)).packed == ("0.model",)
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=3), expected, atol=2e-6)


def test_sparse_vectors_are_those_of_before(folders) -> None:
    torch.manual_seed(0)
    path = folders(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)))
    model = sentence_transformers.SparseEncoder(path, device="cpu")
    expected = model.encode(TEXTS).to_dense()
    assert (expected > 0).any()
    np.testing.assert_allclose(pack(model).encode(TEXTS).to_dense(), expected, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["Bert", "Qwen3"])
def test_rerankers(folders, kind: str, side: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(SIZES if kind == "Bert" else DECODER), num_labels=1)
    path = folders(getattr(transformers, f"{kind}ForSequenceClassification")(config))
    model = sentence_transformers.CrossEncoder(path, device="cpu")
    model.tokenizer.padding_side = side
    pairs = [("a cat", "the mat sat quietly"), ("on the mat", "quietly"), ("small", "")]
    expected = model.predict(pairs)
    assert np.ptp(expected) > 1e-4
    np.testing.assert_allclose(pack(model).predict(pairs), expected, atol=1e-6)
