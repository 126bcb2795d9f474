"""A ``generate`` that decodes by its own means is refused by name: nothing can be called in the place of decoding."""

import pytest
import torch
from transformers import MusicgenDecoderConfig, MusicgenForCausalLM

from hf_sparse import exact_search, sparsify
from tests.tiny_models import tiny_model, tokens


def test_a_generate_that_refuses_a_method_of_decoding():
    sizes = {"vocab_size": 16, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MusicgenDecoderConfig(**sizes, num_codebooks=2, pad_token_id=16, bos_token_id=16, eos_token_id=2)
    inputs = {"input_ids": torch.randint(0, 16, (2, 3))}  # a row, two codebooks
    model = sparsify(MusicgenForCausalLM(config).eval(), attn="entmax15", example=inputs)
    with pytest.raises(TypeError, match="generate of MusicgenForCausalLM takes no custom_generate"):
        exact_search(model, inputs, max_new_tokens=2)


@pytest.mark.parametrize("raised", [None, "another"])
def test_a_generate_that_ignores_it_or_fails_for_another_reason(monkeypatch, raised):
    model = sparsify(tiny_model("llama"), head="entmax15")

    def own(self, *args, **kwargs):
        if raised:
            raise ValueError(raised)
        return tokens()

    monkeypatch.setattr(type(model), "generate", own)
    with pytest.raises(ValueError if raised else TypeError, match=raised or "generate of LlamaForCausalLM takes no"):
        exact_search(model, {"input_ids": tokens()}, max_new_tokens=2)
