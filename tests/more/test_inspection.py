"""Packages that look inside models see sparse attention and the sparse distribution."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from captum.attr import FeatureAblation, LLMAttribution, TextTokenInput
from minicons.scorer import IncrementalLMScorer
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

import hf_sparse
from tests.tiny_models import SEQ2SEQS, tiny_model, tokens
from tests.word_tokenizer import word_tokenizer

TEXT = "w5 w6 w7 w8 w9"


@pytest.fixture
def tokenizer(tmp_path):
    word_tokenizer().save_pretrained(tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path)
    found.init_kwargs["name_or_path"] = str(tmp_path)  # TransformerLens loads it again
    return found


def sparse(name="llama", head="entmax15"):
    return hf_sparse.sparsify(tiny_model(name), attn="entmax15", head=head)


# ---- TransformerLens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [None, "entmax15"])
@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt2", "llama", "qwen3", *SEQ2SEQS])
def test_transformer_lens_sees_sparse_patterns_and_logits(name, head, tokenizer):
    ids = tokens(2)
    inputs = {"decoder_input_ids": ids[:, :5]} if name in SEQ2SEQS else {}
    expected = sparse(name, head)(ids, **inputs, output_attentions=True)
    bridge = TransformerBridge.boot_transformers(name, hf_model=tiny_model(name), tokenizer=tokenizer, device="cpu")
    hf_sparse.sparsify(bridge.original_model, attn="entmax15", head=head)
    inputs = {"decoder_input": ids[:, :5]} if inputs else {}
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(ids, **inputs)
    torch.testing.assert_close(logits.softmax(-1), expected.logits.softmax(-1), atol=1e-5, rtol=1e-4)
    assert torch.equal(logits.softmax(-1) == 0, expected.logits.softmax(-1) == 0)
    name, weights = "blocks.{}.attn", expected.get("attentions")
    if inputs:
        name, weights = "decoder_blocks.{}.cross_attn", expected.cross_attentions
    for layer, wanted in enumerate(weights):
        found = cache[f"{name.format(layer)}.hook_pattern"]
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_transformer_lens_around_a_sparse_model_is_refused_and_says_what_to_do(tokenizer):
    bridge = TransformerBridge.boot_transformers("llama", hf_model=sparse(), tokenizer=tokenizer, device="cpu")
    with pytest.raises(RuntimeError, match=r"would be dense: call unsparsify\(model\), put the module in, and call"):
        bridge(tokens(1))


# ---- nnsight -----------------------------------------------------------------------------------------------------


def test_nnsight_reads_and_changes_what_passes_through():
    """In a process of its own: it gives every object an attribute ``save``, on which other packages fail."""
    module = "tests.more.nnsight_session"
    subprocess.run([sys.executable, "-m", module], check=True, cwd=Path(__file__).parents[2], timeout=300)


# ---- captum, minicons --------------------------------------------------------------------------------------------


def test_captum_attributes_the_sparse_log_probability(tokenizer):
    model = sparse(head={"name": "entmax15", "temperature": 4.0})
    attribution = LLMAttribution(FeatureAblation(model), tokenizer)
    found = attribution.attribute(TextTokenInput(TEXT, tokenizer, baselines=0), target="w3").seq_attr
    inputs = tokenizer(TEXT, return_tensors="pt").input_ids
    target = tokenizer.convert_tokens_to_ids("w3")

    @torch.no_grad()
    def score(ids):
        return model(ids).logits[0, -1].log_softmax(-1)[target]

    for place in range(inputs.shape[1]):
        without = deepcopy(inputs)
        without[0, place] = 0
        torch.testing.assert_close(found[place], score(inputs) - score(without), atol=1e-3, rtol=1e-4)


def test_minicons_scores_are_those_of_the_sparse_distribution(tokenizer):
    model = sparse(head={"name": "entmax15", "temperature": 4.0})
    scorer = IncrementalLMScorer(model, device="cpu", tokenizer=tokenizer)
    (found,) = scorer.token_score([TEXT])
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        expected = model(ids).logits[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor([score for _, score in found[1:]]), expected, atol=1e-3, rtol=1e-4)
