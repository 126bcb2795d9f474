"""A configuration of any architecture, made tiny by the names of its settings."""

import re
from typing import Any

HIDDEN, HEADS, HEAD_DIM, VOCAB, IMAGE = 64, 4, 16, 99, 64

# What a setting becomes, by the first pattern its name matches in full. A number replaces integers above it, or one of
# the tests below decides.
RULES: list[tuple[str, int]] = [
    (
        r"(num_|n_|moe_num_|moe_)?(routed_|local_|dense_)?experts|num_experts_per_layer|ffn_num_experts|num_moe_experts",
        4,
    ),
    (r"(num_|n_)?experts_per_tok(en)?|moe_k|moe_top_?k|num_selected_experts|top_k_experts|moe_router_topk", 2),
    (r"n_group|topk_group|num_expert_group|n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"index_topk", 4),
    (r"index_n_heads", 16),  # with few, scores after a ReLU tie at zero and which keys are chosen is chance
    (r"linear_num_key_heads", 2),
    (r".*(attention_heads|num_heads|n_heads|n_head|_heads|num_value_heads)|heads", HEADS),
    (r"(.*_)?(head_dim|d_kv|kv_channels|head_size)|attention_head_size|d_head|dim_head", HEAD_DIM),
    (r"(q|kv|o|.*_)?_?lora_rank|.*_rank", 16),
    (r"rotary_dim", 8),
    (r"query_pre_attn_scalar", 16),
    (
        r".*(ffn_dim|intermediate_size|d_ff|n_inner|d_inner|inner_dim|ffn_size|ffn_hidden_size|mlp_dim|dim_ff|hidden_dim)",
        HIDDEN,
    ),
    (
        r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|embed_proj_dim|projection_dim|hidden_channels|"
        r"model_dim|embedding_dim|dim_model|proj_dim|projection_size|proj_size|lru_width|encoder_width|text_width|"
        r"mm_hidden_size|emb_dim|adapter_in_dim|project_dim|out_hidden_size|output_dim|vision_output_dim|cross_attention_dim|d_latents)|dim|width",
        HIDDEN,
    ),
    (r"(.*_)?(vocab_size|n_vocab)(_per_layer_input)?", VOCAB),
    (r"(.*_)?num_labels", 3),
    (r"(.*_)?(num_)?(hidden_|encoder_|decoder_|hidden_)?(layers|layer)|n_layers?|depth|num_blocks|.*_layers", 2),
    (r"sliding_window|window_size|attention_window|attention_chunk_size|local_attention|chunk_size|block_size", 4),
    (r"max_(source|target)_positions|max_position_embeddings|n_positions|n_ctx|max_seq(uence)?_len(gth)?", 512),
    (r"num_mel_bins|num_mels|feature_size|input_feat_per_channel|input_feat_size", 16),
    (r"codebook_size|num_embeddings|num_codes", 32),
    (r"mamba_d_state|state_size|ssm_state_size|mamba_d_ssm", 8),
]
KEY_VALUE_HEADS = re.compile(r"(num_|n_)?(key_value_|kv_|global_key_value_)heads?|(num_)?multi_query_group(s|_num)?")
LAYERS = re.compile(
    r"(num_(hidden_|encoder_|decoder_|text_)?layers|n_layers?|depth|(encoder|decoder)_layers|num_blocks|num_hidden_layers)"
)
TOKEN = re.compile(r".*(token_id|token_index|_token_idx|token_ids|_id)")
PLACEHOLDER = re.compile(r"(image|audio|video)_token_(id|index)")
IMAGE_SIZE = re.compile(r"(.*_)?(image_size|img_size|input_size)")
PATCH_SIZE = re.compile(r"(.*_)?patch_size")


def shrink(config: dict[str, Any], overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """The plain data of a configuration with everything small; what ``overrides`` names is taken from there.

    Layers keep every kind that lists of one entry a layer name.
    """
    overrides = overrides or {}
    tokens = iter(range(VOCAB - 1, 10, -1))
    depth = next((v for k, v in config.items() if LAYERS.fullmatch(k) and isinstance(v, int) and v > 2), None)
    depth = None if "depths" in config else depth  # stages, not layers
    lists = {k: v for k, v in config.items() if depth and isinstance(v, list) and len(v) == depth}
    layers = list(range(2))
    for values in lists.values():
        for layer, value in enumerate(values):
            if value not in [values[kept] for kept in layers] and len(layers) < 6:
                layers.append(layer)
    layers.sort()
    outputs = len(config["out_indices"]) if depth and config.get("out_indices") else 0
    layers += range(len(layers), outputs)  # as many as give their states to what comes after
    small: dict[str, Any] = {}
    for name, value in config.items():
        if name in ("out_features", "stage_names") and name not in overrides:  # which follow from the others
            continue
        inner = isinstance(value, dict) and ("model_type" in value or name.endswith(("config", "rope_parameters")))
        if name in overrides and not (inner and isinstance(overrides[name], dict)):
            small[name] = overrides[name]
        elif name == "per_layer_config" and value:
            by_layer = {int(layer): setting for layer, setting in value.items()}
            small[name] = {i: shrink(by_layer[layer]) for i, layer in enumerate(layers) if layer in by_layer}
        elif name == "out_indices" and depth and value:
            small[name] = list(range(len(layers) - outputs + 1, len(layers) + 1))
        elif inner:
            small[name] = shrink(value, overrides.get(name))
        elif KEY_VALUE_HEADS.fullmatch(name) and isinstance(value, int):
            small[name] = min(value, HEADS if value == config.get("num_attention_heads") else HEADS // 2)
        elif name in lists:
            small[name] = [_setting(name, value[layer], tokens) for layer in layers]
        elif LAYERS.fullmatch(name) and isinstance(value, int):
            small[name] = len(layers) if value == depth else min(value, 2)
        else:
            small[name] = _setting(name, value, tokens)
    return {**small, **{name: value for name, value in overrides.items() if name not in small}}


def _setting(name: str, value: Any, tokens: Any) -> Any:
    if name == "num_kv_shared_layers":
        return 0
    if name == "head_dim" and value is None:
        return HIDDEN // HEADS
    if name == "image_grid_pinpoints":
        return [[IMAGE, IMAGE]]
    if value is None and PLACEHOLDER.fullmatch(name):
        return next(tokens)
    if name == "num_feat_extract_layers" or isinstance(value, bool) or value is None or isinstance(value, str | float):
        return value
    if TOKEN.fullmatch(name) and isinstance(value, int):
        fixed = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        return fixed[name] if name in fixed else (next(tokens) if value >= 10 else value)
    if TOKEN.fullmatch(name) and isinstance(value, list):
        return [2] if name == "eos_token_id" else [next(tokens) for _ in value]
    if IMAGE_SIZE.fullmatch(name):
        return [IMAGE] * len(value) if isinstance(value, list) else IMAGE
    if PATCH_SIZE.fullmatch(name) and isinstance(value, int):
        return value if value < 8 else min(value, 16) if value in (8, 16) else 16
    if name == "num_heads" and isinstance(value, list):
        return [2 ** (heads.bit_length() - 1) for heads in value]
    if name == "mrope_section":
        return [4, 2, 2]
    if name == "depths" and isinstance(value, list | tuple):
        return [1] * len(value)
    if isinstance(value, int):
        for pattern, small in RULES:
            if re.fullmatch(pattern, name):
                return min(value, small)
    return value
