"""Settings for the architectures that the general rule of ``shrink`` cannot build."""

from typing import Any

from transformers import (
    BertConfig,
    EncoderDecoderConfig,
    GPT2Config,
    SpeechEncoderDecoderConfig,
    VisionEncoderDecoderConfig,
    ViTConfig,
    Wav2Vec2Config,
)

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 99, **SIZES}


def _decoder() -> BertConfig:
    return BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)


def _encoder_decoder() -> EncoderDecoderConfig:
    return EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**TEXT), _decoder())


def _vision_encoder_decoder() -> VisionEncoderDecoderConfig:
    decoder = GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=4, add_cross_attention=True)
    return VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(**SIZES, image_size=64), decoder)


def _speech_encoder_decoder() -> SpeechEncoderDecoderConfig:
    convolutions = {"conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3)}
    encoder = Wav2Vec2Config(
        vocab_size=99, **SIZES, **convolutions, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2
    )
    return SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, _decoder())


MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
AUDIO_TOKENIZER = {"num_filters": 2}
FIRST_LAYER = {"insert_layer_id": 0}
FULL = {"attention_type": "original_full"}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
GLM = {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}}
NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2}
VOCABULARY = {"<image>": 98, **{f"IMGIMG{chr(65 + i)}Z": 88 + i for i in range(8)}}

# In the place of backbones that are computed by timm, which is not installed: a small ResNet of Transformers.
RESNET = {
    "backbone_config": {
        "model_type": "resnet",
        "hidden_sizes": [16, 32, 48, 64],
        "depths": [1, 1, 1, 1],
        "embedding_size": 16,
        "layer_type": "basic",
        "out_indices": [1, 2, 3, 4],
    }
}
HIERA = {"hidden_size": 96, "embed_dim_per_stage": [96, 192, 384, 768]}

# What a model type needs on top of the general rule; a function builds the whole configuration.
OVERRIDES: dict[str, Any] = {
    **dict.fromkeys(("conditional_detr", "dab-detr", "deformable_detr", "detr", "table-transformer"), RESNET),
    "DetrForSegmentation": {**RESNET, "encoder_attention_heads": 8, "decoder_attention_heads": 8},
    **{
        key: {"decoder_in_channels": [64, 64, 64]}
        for key in (
            "d_fine",
            "deimv2",
            "pp_doclayout_v2",
            "pp_doclayout_v3",
            "pp_doclayout_v4",
            "rt_detr",
            "rt_detr_v2",
        )
    },
    **{key: {"num_queries": 8} for key in ("rf_detr", "grounding-dino", "mm-grounding-dino")},
    "mask2former": {"feature_size": 64, "mask_feature_size": 64},
    **{key: {"context_length": 256} for key in ("timesfm", "timesfm2_5")},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    **{
        key: {"num_hidden_layers": 4, "out_indices": [0, 1, 2, 3]}
        for key in ("BeitForSemanticSegmentation", "Data2VecVisionForSemanticSegmentation")
    },
    "Wav2Vec2BertForCTC": {"vocab_size": 99},
    "Wav2Vec2ConformerForCTC": {"vocab_size": 99},
    "dory": {
        "num_hidden_layers": 8,
        "n_input_layers": 2,
        "n_recurrent_layers": 4,
        "n_output_layers": 2,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 2,
    },
    "exaone4_5": {"vision_config": {"window_size": 32}},
    "xlm": {"mask_token_id": 5},
    "flaubert": {"mask_token_id": 5},
    "gemma3": {"mm_tokens_per_image": 4},
    "hyperclovax_vision_v2": {"vision_config": {"window_size": 32}},
    "paddleocr_vl": {"text_config": {"rope_parameters": MROPE}},
    "blip-2": {"image_token_index": 98, "num_query_tokens": 4},
    "glm46v": GLM,
    "glm4v": GLM,
    "glm4v_moe": {"text_config": {"rope_parameters": {"mrope_section": [2, 1, 1]}}},
    "glm_ocr": GLM,
    "glmga": GLM,
    "hunyuan_vl": {"text_config": {"rope_parameters": {"mrope_section": [2, 2, 2, 2]}}},
    "instructblip": {"image_token_index": 98, "num_query_tokens": 4},
    "instructblipvideo": {"video_token_index": 98, "num_query_tokens": 4},
    "kosmos-2": {"latent_query_num": 4},
    "kosmos-2.5": {"latent_query_num": 4},
    "llama4": {"vision_config": {"intermediate_size": 256, "projector_input_dim": 64, "projector_output_dim": 64}},
    "longcat_flash": {"qk_head_dim": 32},
    "mistral_large4": {
        "text_config": {
            "num_hidden_layers": 4,
            **dict.fromkeys(("kv_source_layers", "no_rope_layers", "indexer_types", "mlp_layer_types", "layer_types")),
        }
    },
    "mllama": {"vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192}},
    "mistral4": {"head_dim": 32},
    "mobilevit": {"image_size": 256},
    "mobilevitv2": {"image_size": 256},
    "nemo_speechlm": {"text_config": NEMOTRON},
    "nemotron_h": NEMOTRON,
    "nemotron_h_omni": {"text_config": NEMOTRON},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "xlstm": {"qk_dim_factor": 1.0},
    "hrm_text": {"use_cache": False},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "donut-swin": {"window_size": 2},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "lilt": {"hidden_size": 96},
    "mobilebert": {"intra_bottleneck_size": 64},
    "qwen2_5_omni_thinker": {"text_config": {"rope_parameters": MROPE}, "vision_config": {"window_size": 32}},
    "qwen2_5_vl": {"text_config": {"rope_parameters": MROPE}, "vision_config": {"window_size": 32}},
    "qwen2_vl": {"text_config": {"rope_parameters": MROPE}},
    "shieldgemma2": {"mm_tokens_per_image": 4, "yes_token_index": 5, "no_token_index": 6},
    "step3p7": {"text_config": {"sliding_window": 4}},
    "swin": {"window_size": 2},
    "swinv2": {"window_size": 2},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4}},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
        "hybrid_layer_ids": [2, 4],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "big_bird": FULL,
    "bigbird_pegasus": FULL,
    "blt": {
        "num_hidden_layers": 2,
        "encoder_hash_byte_group_vocab": 50,
        "encoder_config": {"hidden_size_global": 64},
        "decoder_config": {"hidden_size_global": 64},
    },
    "chameleon": {
        "vocabulary_map": VOCABULARY,
        "vq_config": {"base_channels": 32, "latent_channels": 32, "num_embeddings": 8},
    },
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "cohere_compass": {
        "text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    },
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}},
    "data2vec-vision": {"out_indices": [0, 0, 1, 1]},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}},
    "dots3_note": {
        "text_config": {"head_dim": 32},
        "vision_config": {"adapter_out_dim": 64},
        "audio_config": {"adapter_out_dim": 64, "conv_output_size": 128},
    },
    "dots3_note_text": {"head_dim": 32},
    "gemma4_assistant": {"text_config": {"num_kv_shared_layers": 3, "num_hidden_layers": 3}},
    "gemma4_unified_assistant": {"text_config": {"num_kv_shared_layers": 3, "num_hidden_layers": 3}},
    "muse_spark": {"audio_config": {"hidden_sizes": [16, 16, 32, 32], "num_hidden_layers": 4}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "efficientnet": {"width_coefficient": 0.2, "depth_coefficient": 0.3, "hidden_dim": 256},
    "emu3": {"vocabulary_map": VOCABULARY, "vq_config": {"base_channels": 32, "hidden_size": 128, "codebook_size": 8}},
    "encoder-decoder": _encoder_decoder,
    "ernie4_5_vl_moe": {
        "text_config": {
            "moe_intermediate_size": [16, 16],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]},
        }
    },
    "align": {"vision_config": {"width_coefficient": 0.2, "depth_coefficient": 0.3, "hidden_dim": 64}},
    "colqwen2": {"vlm_config": {"text_config": {"rope_parameters": MROPE}}},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config": {"model_in_dim": 16}},
    **{key: {"flow_head_config": {"condition_dim": 64}} for key in ("gradium_phonon_tts", "pocket_tts")},
    **{
        key: {
            "prompt_encoder_config": {"image_size": 64, "image_embedding_size": 4},
            "vision_config": {"output_channels": 64, "num_pos_feats": 32},
        }
        for key in ("sam", "sam_hq")
    },
    "Blip2ForImageTextRetrieval": {
        "image_token_index": 98,
        "num_query_tokens": 4,
        "qformer_config": {"use_qformer_text_input": True},
    },
    "bark": {f"{part}_acoustics_config": {"block_size": 64} for part in ("coarse", "fine")}
    | {"semantic_config": {"block_size": 64}},
    "bros": {"dim_bbox_projection": 16},
    "sam3_tracker": {"vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}},
    "sapiens2": {
        "head_config": {
            "upsample_out_channels": [16],
            "upsample_kernel_sizes": [4],
            "conv_out_channels": [16],
            "conv_kernel_sizes": [1],
            "scale_conv_out_channels": [16],
            "scale_conv_kernel_sizes": [1],
            "scale_final_input_size": 64,
            "scale_final_hidden_sizes": [16, 16],
        }
    },
    "splinter": {"question_token_id": 5},
    "superglue": {"keypoint_detector_config": {"descriptor_decoder_dim": 64}},
    "SwinForMaskedImageModeling": {"window_size": 2, "num_layers": 4},
    "Swinv2ForMaskedImageModeling": {"window_size": 2, "num_layers": 4},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "depth_pro": {"intermediate_hook_ids": [1, 0], "intermediate_feature_dims": [64, 64]},
    "csm": {"codec_config": {"hidden_size": 64, "upsample_groups": 64, "num_filters": 8}},
    "HieraForPreTraining": {"decoder_hidden_size": 64, "decoder_depth": 1, "decoder_num_heads": 4},
    "lw_detr": {"projector_scale_factors": [1.0], "num_feature_levels": 1, "num_queries": 8},
    "sam2": {
        "vision_config": {"backbone_config": HIERA, "backbone_feature_sizes": [[56, 56], [28, 28], [14, 14]]},
        "prompt_encoder_config": {"image_size": 224},
    },
    **{
        key: {"vision_config": {"backbone_config": HIERA, "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}}
        for key in ("sam2_video", "edgetam_video")
    },
    "zoedepth": {"fusion_hidden_size": 64, "bottleneck_features": 64},
    "esm": {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 0, "position_embedding_type": "rotary"},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128},
    "florence2": {
        "vision_config": {"embed_dim": [16, 16, 32, 32], "num_heads": [2, 2, 4, 4], "num_groups": [2, 2, 4, 4]}
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "glm5_next": {"text_config": {"num_key_value_heads": 4, "index_kpool": 2}},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "janus": {
        "vq_config": {"base_channels": 32, "latent_channels": 32, "num_embeddings": 8},
        "vision_config": {"num_image_tokens": 16},
    },
    "kyutai_speech_to_text": {"codec_config": {"hidden_size": 64, "upsample_groups": 64, "num_filters": 8}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longformer": {"attention_window": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "minicpm_ocr": FIRST_LAYER,
    "minicpmv4_6": FIRST_LAYER,
    "minicpmv4_7": FIRST_LAYER,
    "molmo2": {
        "vision_config": {"num_position_embeddings": 16},
        "adapter_config": {"vision_feature_layer": [1, 0]},
    },
    "moonshine_streaming": {"num_key_value_heads": 4},
    "phi4_multimodal": {
        "audio_config": {"input_size": 80, "ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64}
    },
    "perceiver": {"num_cross_attention_heads": 1, "num_self_attention_heads": 4, "d_latents": 64, "d_model": 64},
    "qwen4_exp": {
        "text_config": {
            "indexer_n_heads": 4,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
        }
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "nemotron": {"num_key_value_heads": 2},
    "prophetnet": {"disable_ngram_loss": True},  # its loss is over the logits it returns then, and no others
    "ReformerForMaskedLM": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "speech-encoder-decoder": _speech_encoder_decoder,
    "vibevoice": {"audio_config": AUDIO_TOKENIZER, "semantic_model_config": AUDIO_TOKENIZER},
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config": AUDIO_TOKENIZER,
        "semantic_tokenizer_encoder_config": AUDIO_TOKENIZER,
    },
    "vision-encoder-decoder": _vision_encoder_decoder,
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
}

# What the default configuration itself needs to be valid.
SEED: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "gemma4_unified_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
}
