"""Embedding models and rerankers of sentence-transformers on packed tokens, and adapters of peft-like libraries."""


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder with random weights and a tokenizer."""
    path = tmp_path_factory.mktemp("model")
    (path / "vocab.txt").write_text("\n".join(WORDS))
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(path)
    transformers.BertTokenizer(vocab=str(path / "vocab.txt")).save_pretrained(path)
    return str(path)


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


def test_rerankers(folder: str, tmp_path) -> None:
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=1)).save_pretrained(tmp_path)
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    model = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    pairs = [("a cat", "the mat sat quietly"), ("on the mat", "quietly"), ("small", "")]
    expected = model.predict(pairs)
    assert np.ptp(expected) > 1e-4
    np.testing.assert_allclose(pack(model).predict(pairs), expected, atol=1e-6)
