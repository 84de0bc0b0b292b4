"""Small models of transformers with random weights, and inputs with every kind of mask."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

__all__ = ["CONFIGS", "DECODERS", "MASKS", "RELATIVE", "assert_near", "inputs_of", "make", "real"]

SIZES = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
         "max_position_embeddings": 50}
DECODER = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
GEMMA = {**DECODER, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 12,
         "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    "BertModel": transformers.BertConfig(**SIZES), "RobertaModel": transformers.RobertaConfig(**SIZES),
    "XLMRobertaModel": transformers.XLMRobertaConfig(**SIZES), "CamembertModel": transformers.CamembertConfig(**SIZES),
    "ElectraModel": transformers.ElectraConfig(**SIZES, embedding_size=16, hidden_act="gelu_new"),
    "DistilBertModel": transformers.DistilBertConfig(
        vocab_size=60, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=50),
    "MPNetModel": transformers.MPNetConfig(**SIZES),
    "ModernBertModel": transformers.ModernBertConfig(
        **SIZES, global_attn_every_n_layers=2, local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2),
    "T5EncoderModel": transformers.T5Config(
        vocab_size=60, d_model=24, d_kv=8, num_heads=3, d_ff=40, num_layers=2, relative_attention_num_buckets=8,
        relative_attention_max_distance=6),
    "T5EncoderModel, gated": transformers.T5Config(
        vocab_size=60, d_model=24, d_kv=8, num_heads=3, d_ff=40, num_layers=2, feed_forward_proj="gated-gelu"),
    "Qwen2Model": transformers.Qwen2Config(**DECODER, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "Qwen3Model": transformers.Qwen3Config(**DECODER, head_dim=8),
    "LlamaModel": transformers.LlamaConfig(**DECODER, attention_bias=True),
    "MistralModel": transformers.MistralConfig(**DECODER, head_dim=16, sliding_window=4),
    "Gemma3TextModel": transformers.Gemma3TextConfig(**GEMMA),
    "Gemma3TextModel, bidirectional": transformers.Gemma3TextConfig(**GEMMA, use_bidirectional_attention=True),
}
DECODERS = ("Qwen2Model", "Qwen3Model", "LlamaModel", "MistralModel", "Gemma3TextModel",
            "Gemma3TextModel, bidirectional")
RELATIVE = ("MPNetModel", "ModernBertModel", "T5EncoderModel", "T5EncoderModel, gated", *DECODERS)
MASKS = {
    "none": None, "right": [[1] * 7, [1] * 3 + [0] * 4, [0] * 7], "left": [[0] * 2 + [1] * 5, [1] * 7, [0] * 6 + [1]],
    "holes": [[1, 0, 1, 1, 0, 0, 1], [1, 0, 0, 1, 0, 1, 0], [1] * 7], "one token": [[1]], "no sequence": [],
}


def make(kind: str, **changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[kind])
    config.update(changes)
    model = getattr(transformers, kind.partition(",")[0])(config).eval()
    for name, parameter in model.named_parameters():  # biases and norms, too
        torch.nn.init.normal_(parameter, 1.0 if "norm.weight" in name.lower() else 0.0, 0.2)
    return model


def inputs_of(mask: list | None) -> dict[str, torch.Tensor]:
    found = torch.ones(3, 7, dtype=torch.long) if mask is None else torch.tensor(mask, dtype=torch.long)
    found = found if found.numel() else found.reshape(0, 4)
    generator = torch.Generator().manual_seed(1)
    given = {"input_ids": torch.randint(5, 60, found.shape, generator=generator)}
    return given if mask is None else {**given, "attention_mask": found}


def real(hidden: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    return hidden[given["attention_mask"].bool()] if "attention_mask" in given else hidden.flatten(0, 1)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    size = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=1e-5 * size)
