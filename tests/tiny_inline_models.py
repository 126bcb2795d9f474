"""Tiny random models whose attention computes softmax in its own module."""

import torch
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CodeGenConfig,
    CodeGenForCausalLM,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    FalconConfig,
    FalconForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LEDConfig,
    LEDForConditionalGeneration,
    LongformerConfig,
    LongformerForMaskedLM,
    MptConfig,
    MptForCausalLM,
    SqueezeBertConfig,
    SqueezeBertForMaskedLM,
    XLNetConfig,
    XLNetLMHeadModel,
)

from tests.tiny_models import DECODER, PAD, SEQ2SEQ, TOKENS, spread, tokens

GPTJ = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64}
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BUILD = {
    "bloom": (BloomForCausalLM, BloomConfig, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "codegen": (CodeGenForCausalLM, CodeGenConfig, GPTJ),
    "deberta_v2": (
        DebertaV2ForMaskedLM,
        DebertaV2Config,
        {**DECODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    ),
    "falcon": (FalconForCausalLM, FalconConfig, FALCON),
    "falcon_alibi": (FalconForCausalLM, FalconConfig, {**FALCON, "alibi": True}),
    "gpt_neo": (
        GPTNeoForCausalLM,
        GPTNeoConfig,
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 3,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "gptj": (GPTJForCausalLM, GPTJConfig, GPTJ),
    "led": (
        LEDForConditionalGeneration,
        LEDConfig,
        {**SEQ2SEQ, "attention_window": 4, "max_encoder_position_embeddings": 64, "decoder_start_token_id": 2},
    ),
    "longformer": (
        LongformerForMaskedLM,
        LongformerConfig,
        {**DECODER, "attention_window": 4, "max_position_embeddings": 64, "sep_token_id": 2},
    ),
    "mpt": (MptForCausalLM, MptConfig, {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "squeezebert": (
        SqueezeBertForMaskedLM,
        SqueezeBertConfig,
        {
            **DECODER,
            "embedding_size": 32,
            **{f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")},
        },
    ),
    "xlnet": (XLNetLMHeadModel, XLNetConfig, {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 32}),
}
INLINE = sorted(BUILD)
INLINE_CAUSAL = ["bloom", "codegen", "falcon", "falcon_alibi", "gpt_neo", "gptj", "mpt"]


def tiny_inline_model(name: str, seed: int = 0) -> nn.Module:
    """A random model in evaluation mode whose attention and logits have a spread as of a trained one."""
    model_class, config_class, settings = BUILD[name]
    torch.manual_seed(seed)
    return spread(model_class(config_class(vocab_size=23, **TOKENS, **settings)).eval())


def inputs_of(model: nn.Module) -> dict[str, Tensor]:
    """Two rows, the second padded at its end."""
    inputs = {"input_ids": tokens(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    inputs["input_ids"][1, -2:] = PAD
    inputs["attention_mask"][1, -2:] = 0
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(2, 5, seed=3)
    if "global_attention_mask" in type(model).forward.__code__.co_varnames:
        inputs["global_attention_mask"] = torch.tensor([[1, 0, 0, 0, 0, 0, 0, 0]] * 2)
    return inputs
