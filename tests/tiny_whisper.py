"""A tiny random Whisper, with the prompt, the suppressed tokens and the alignment heads of a real one."""

import torch
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from hf_sparse import sparsify
from tests.tiny_models import spread

END, START, ENGLISH, FRENCH, TRANSCRIBE, TRANSLATE, NO_TIMES, PREVIOUS = range(7, 15)
SUPPRESSED = 3
FRAMES = 40


def tiny_whisper(seed=0, sentences=1, **maps):
    """A model, sparse where maps are given, and features for it; tokens 0 to 6 are words."""
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=15,
        num_mel_bins=4,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=FRAMES // 2,
        max_target_positions=24,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    model = spread(WhisperForConditionalGeneration(config).eval())
    model.generation_config = GenerationConfig(
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=START,
        suppress_tokens=[SUPPRESSED, *range(START, PREVIOUS + 1)],
        begin_suppress_tokens=[END],
        no_timestamps_token_id=NO_TIMES,
        prev_sot_token_id=PREVIOUS,
        lang_to_id={"<|en|>": ENGLISH, "<|fr|>": FRENCH},
        task_to_id={"transcribe": TRANSCRIBE, "translate": TRANSLATE},
        alignment_heads=[[0, 1], [1, 0]],
        is_multilingual=True,
        return_timestamps=False,
        max_length=24,
    )
    inputs = {"input_features": torch.randn(sentences, 4, FRAMES)}
    return (sparsify(model, **maps) if maps else model), inputs
