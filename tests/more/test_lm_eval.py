"""What lm-evaluation-harness reports of a sparse model, on a task made here: the model's own log-probabilities."""

import json

import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import hf_sparse
from hf_sparse.hooks import PATCHES, install, uninstall
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer

CONTEXTS = ["w5 w6 w7", "w14", "w3 w20 w21"]
COMMON = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{context}}}}"
"""
CHOICE = """
task: choice
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}]
"""
WRITTEN = """
task: written
output_type: generate_until
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["w3"], max_gen_toks: 5, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(params=["llama", "gpt2"])
def model(request):
    return hf_sparse.sparsify(tiny_model(request.param), attn="entmax15", head="entmax15")


@pytest.fixture
def rows(model):
    """Contexts, each with two continuations drawn from the model and one that is not."""
    torch.manual_seed(0)
    tokenizer, rows = word_tokenizer(), []
    for context in CONTEXTS:
        inputs = tokenizer(context, return_tensors="pt")
        drawn = model.generate(
            **inputs, do_sample=True, num_return_sequences=2, max_new_tokens=4, top_k=0, suppress_tokens=[0, 1, 2]
        )
        choices = tokenizer.batch_decode(drawn[:, inputs.input_ids.shape[1] :])
        rows.append({"context": context, "choices": [*choices, "w22 w8 w4"], "gold": 1})
    return rows


@pytest.fixture
def samples(model, rows, tmp_path):
    """The harness's samples of both tasks, by task."""
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    for name, own in (("choice", CHOICE), ("written", WRITTEN)):
        (tmp_path / f"{name}.yaml").write_text(COMMON.format(data=data) + own)
    found = simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=word_tokenizer(), batch_size=4, max_length=32),
        tasks=["choice", "written"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    return found["samples"]


@torch.no_grad()
def test_log_likelihoods_are_those_of_the_distribution_that_is_decoded(model, rows, samples):
    tokenizer, possible = word_tokenizer(), []
    for sample, row in zip(samples["choice"], rows):
        for (found, is_greedy), choice in zip(sample["filtered_resps"], row["choices"]):
            ids = torch.tensor([tokenizer(f"{row['context']} {choice}").input_ids])
            start = len(tokenizer(row["context"]).input_ids)
            with hf_sparse.raw_scores(model):
                p = hf_sparse.probabilities(model, model(ids).logits[0, start - 1 : -1].double())
            of_tokens = p.gather(-1, ids[0, start:, None])[:, 0]
            possible.append(bool((of_tokens > 0).all()))
            assert is_greedy == bool((of_tokens == p.amax(-1)).all())
            if possible[-1]:
                assert found == pytest.approx(float(of_tokens.log().sum()), rel=1e-6, abs=1e-6)
            else:
                assert np.exp(found) == 0
    assert sum(possible) >= 6
    assert not all(possible)


@pytest.mark.parametrize("name", ["t5", "bart"])
@torch.no_grad()
def test_encoder_decoders_whose_logits_are_read_beside_labels_are_scored_alike(name):
    model = hf_sparse.sparsify(tiny_model(name), attn="entmax15", head={"name": "entmax", "alpha": 1.2})
    pairs = [("w5 w6", "w7 w8"), ("w9", "w3 w4 w10"), ("w11 w12 w13", "w21")]
    harness = HFLM(pretrained=model, tokenizer=word_tokenizer(), backend="seq2seq", batch_size=1, max_length=32)
    requests = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
    for pair, (found, is_greedy) in zip(pairs, harness.loglikelihood(requests), strict=True):
        source, target = (word_tokenizer()(text, return_tensors="pt").input_ids for text in pair)
        p = model(source, labels=target, log_probs=True).logits[0].double().exp()
        of_tokens = p.gather(-1, target[0, :, None])[:, 0]
        assert found == pytest.approx(float(of_tokens.log().sum()), abs=1e-5) or np.exp(found) == of_tokens.prod() == 0
        assert is_greedy == bool((of_tokens == p.amax(-1)).all())


@pytest.mark.parametrize("head", [None, "entmax15"])
@torch.no_grad()
def test_a_text_with_an_impossible_token_has_an_infinite_perplexity(head):
    model, tokenizer = tiny_model("llama"), word_tokenizer()
    model = model if head is None else hf_sparse.sparsify(model, head=head)
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, max_length=32)
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": 4, "suppress_tokens": [0, 1, 2]}
    drawn = model.generate(torch.tensor([[harness.prefix_token_id]]), num_return_sequences=3, **options)
    rows = [*drawn.tolist(), [harness.prefix_token_id, 5, 6, 7, 8, 9]]
    texts = [tokenizer.decode(row[1:]) for row in rows]
    found = harness.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts])
    for row, of_text in zip(rows, found, strict=True):
        p = model(torch.tensor([row])).logits[0, :-1].double().softmax(-1)
        assert of_text == pytest.approx(float(p[range(len(row) - 1), row[1:]].log().sum()), abs=1e-4)
    assert np.isneginf(found).tolist() == [False, False, False, head == "entmax15"]
    ((of_choice, _),) = harness.loglikelihood([Instance("loglikelihood", {}, ("w5", " w6 w7 w8 w9"), 0)])
    assert np.isfinite(of_choice)  # the likeliest choice is still found where all are impossible


def test_generation_is_that_of_the_model(model, rows, samples):
    tokenizer = word_tokenizer()
    for sample, row in zip(samples["written"], rows):
        inputs = tokenizer(row["context"], return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=5, do_sample=False)[0, inputs.input_ids.shape[1] :]
        expected = tokenizer.decode(ids, skip_special_tokens=True).split("w3")[0]
        assert sample["filtered_resps"][0].strip() == expected.strip()


def test_the_change_to_the_harness_is_in_the_table_and_undone(model):
    uninstall()
    try:
        plain = HFLM._model_call
    finally:
        install()
    HFLM(pretrained=model, tokenizer=word_tokenizer())
    assert HFLM._model_call is not plain
    assert any(patch.owner.endswith(":HFLM") for patch in PATCHES)
    uninstall()
    try:
        assert HFLM._model_call is plain
    finally:
        install()
