"""Tiny random models, one for each architecture the tests go through."""

import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

PAD, BOS, EOS = 0, 1, 2
TOKENS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
DECODER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "forced_eos_token_id": None,
}
GROUPED = {**DECODER, "num_key_value_heads": 2, "head_dim": 8}

BUILD = {
    "llama": (LlamaForCausalLM, LlamaConfig, {**TOKENS, **DECODER, "num_key_value_heads": 2}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {**TOKENS, **GROUPED}),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {**TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {**TOKENS, **GROUPED, "query_pre_attn_scalar": 8, "sliding_window": 4},
    ),
    "bert": (BertForMaskedLM, BertConfig, {**TOKENS, **DECODER}),
    "modernbert": (
        ModernBertForMaskedLM,
        ModernBertConfig,
        {**TOKENS, **DECODER, "num_hidden_layers": 3, "cls_token_id": BOS, "sep_token_id": EOS},
    ),
    "t5": (
        T5ForConditionalGeneration,
        T5Config,
        {
            "pad_token_id": PAD,
            "eos_token_id": EOS,
            "decoder_start_token_id": PAD,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 4,
        },
    ),
    "bart": (BartForConditionalGeneration, BartConfig, {**TOKENS, **SEQ2SEQ, "decoder_start_token_id": EOS}),
    "marian": (MarianMTModel, MarianConfig, {**TOKENS, **SEQ2SEQ, "decoder_start_token_id": PAD}),
}
ARCHITECTURES = sorted(BUILD)
CAUSAL = ["gemma2", "gpt2", "llama", "qwen3"]
SEQ2SEQS = ["bart", "marian", "t5"]
MASKED = ["bert", "modernbert"]


def tiny_model(name: str, vocab_size: int = 23, seed: int = 0, **changes: int) -> nn.Module:
    """A random model in evaluation mode whose attention and logits have a spread as of a trained one."""
    model_class, config_class, settings = BUILD[name]
    torch.manual_seed(seed)
    return spread(model_class(config_class(vocab_size=vocab_size, **{**settings, **changes})).eval())


def spread(model: nn.Module) -> nn.Module:
    """Scale the weights of a random model so that its scores differ as those of a trained one."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and 0 < parameter.std() < 0.1:
                parameter.mul_(0.35 / parameter.std())
            elif parameter.dim() >= 2 and parameter.std() > 0.8:
                parameter.mul_(0.6 / parameter.std())
    return model


def tokens(rows: int = 2, length: int = 7, vocab_size: int = 23, seed: int = 1) -> Tensor:
    """Token ids without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab_size, (rows, length), generator=generator)


def labelled(model: nn.Module, rows: int = 2) -> dict[str, Tensor]:
    """Inputs with labels, some of them ignored."""
    labels = tokens(rows, seed=2)
    labels[0, :3] = -100
    inputs = {"input_ids": tokens(rows), "labels": labels}
    return (
        inputs
        if model.config.is_encoder_decoder or type(model).__name__.endswith("MaskedLM")
        else {
            "input_ids": labels.clamp(min=3),
            "labels": labels,
        }
    )


def attentions(model: nn.Module, **inputs: Tensor) -> list[Tensor]:
    """The attention weights of every layer and kind."""
    output = model(**inputs, output_attentions=True)
    kinds = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return [layer for kind in kinds for layer in (output.get(kind) or ())]
