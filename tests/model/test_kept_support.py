"""Every processor of scores that ``generate`` knows, on sparse heads: none brings back what has probability zero."""

import inspect
import re

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, SynthIDTextWatermarkingConfig, WatermarkingConfig
from transformers.generation import GenerationMixin, logits_process

from hf_sparse import Ensemble, sparsify
from hf_sparse.model.kept_support import KeptSupport
from tests.enumeration import VOCAB, model_and_inputs, next_distribution
from tests.model.test_generate import strings_of
from tests.tiny_models import EOS

STEPS = 3
# Settings, by the name that Transformers gives them, of processors that reweigh or cut: they keep to the support.
WITHIN = {
    "encoder_repetition_penalty": 5.0,
    "epsilon_cutoff": 0.3,
    "eta_cutoff": 0.3,
    "exponential_decay_length_penalty": (0, 3.0),
    "min_p": 0.01,
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "repetition_penalty": 0.001,
    "sequence_bias": [[[6], 2000.0], [[4, 5], 2000.0]],
    "temperature": 1e5,
    "top_h": 0.9,
    "top_k": VOCAB - 1,
    "top_p": 0.95,
    "typical_p": 0.95,
    "watermarking_config": WatermarkingConfig(bias=2000.0, greenlist_ratio=0.5, context_width=1),
}
# Of processors that forbid tokens: where they leave none of the support, the order of the logits decides.
CONSTRAINTS = {
    "bad_words_ids": [[4]],
    "begin_suppress_tokens": [4],
    "encoder_no_repeat_ngram_size": 1,
    "forced_bos_token_id": 6,
    "forced_eos_token_id": EOS,
    "min_length": 9,
    "min_new_tokens": 4,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": [4],
}
REFUSED = {"guidance_scale": 1.5}
# Read there too, but no processor's setting by themselves.
OTHERS = {"do_sample", "max_length", "num_beams", "use_cache", "_eos_token_tensor"}
OTHERS_SINCE_5_24 = {"num_return_sequences"}


def test_the_tables_here_hold_every_setting_that_transformers_makes_a_processor_of():
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    known = {*WITHIN, *CONSTRAINTS, *REFUSED} | OTHERS
    assert set(re.findall(r"generation_config\.(\w+)", source)) - OTHERS_SINCE_5_24 == known


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints", "ignore:Passing .encoder")
def test_the_tables_here_make_every_processor_that_is_not_a_single_models_own():
    special = {"Whisper", "Dia", "Bark", "AlternatingCodebooks"}
    public = {
        cls
        for name, cls in vars(logits_process).items()
        if inspect.isclass(cls) and issubclass(cls, LogitsProcessor) and not any(map(name.startswith, special))
    }
    made = set()
    model, inputs = model_and_inputs("bart", "entmax15")
    for name, value in ({**WITHIN, **CONSTRAINTS} | {"prefix_allowed_tokens_fn": lambda *_: [4]}).items():
        made |= {type(processor) for processor in processors_of(model, inputs, **{name: value})}
    synth = SynthIDTextWatermarkingConfig(keys=[6, 4, 8], ngram_len=2)
    made |= {type(processor) for processor in processors_of(model, inputs, watermarking_config=synth)}
    left = {cls.__name__ for cls in public - made}
    assert left == {
        "LogitsProcessor",
        "ClassifierFreeGuidanceLogitsProcessor",
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    }


def processors_of(model, inputs, **options):
    """The processors that ``generate`` uses."""
    seen = []
    original = type(model)._get_logits_processor

    def spy(self, *args, **kwargs):
        seen.append(original(self, *args, **kwargs))
        return seen[-1]

    type(model)._get_logits_processor = spy
    try:
        model.generate(**inputs, max_new_tokens=1, do_sample=True, **options)
    finally:
        type(model)._get_logits_processor = original
    assert isinstance(seen[0], KeptSupport)
    return seen[0]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("setting", [*WITHIN, "all"])
@pytest.mark.filterwarnings("ignore:Passing .encoder_repetition_penalty. requires")
@torch.no_grad()
def test_no_string_of_probability_zero_comes_out(setting, do_sample, num_beams):
    options = {"top_k": 0, **(WITHIN if setting == "all" else {setting: WITHIN[setting]})}
    if not do_sample:
        sampling = ("temperature", "epsilon_cutoff", "eta_cutoff", "min_p", "top_h", "top_k", "top_p", "typical_p")
        options = {name: value for name, value in options.items() if name not in sampling}
    for name, head in (("llama", "sparsemax"), ("bart", "entmax15")):
        model, inputs = model_and_inputs(name, head)
        torch.manual_seed(0)
        sequences = model.generate(
            **inputs, **options, max_new_tokens=STEPS, do_sample=do_sample, num_beams=num_beams, num_return_sequences=1
        )
        (string,) = strings_of(model, inputs, sequences)
        for position, token in enumerate(string):
            assert next_distribution(model, inputs, string[:position])[token] > 0


@torch.no_grad()
def test_what_is_raised_acts_on_probabilities():
    """Where a processor has the support, its scores are what they would be from any distribution; zero stays zero."""
    model, inputs = model_and_inputs("llama", "entmax15")
    p = next_distribution(model, inputs, ())
    factor = torch.linspace(1, 3, VOCAB, dtype=torch.float64)
    bias = [[[token], float(value)] for token, value in enumerate(factor.log())]
    assert 1 < (p > 0).sum() < VOCAB
    options = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    q = model.generate(**inputs, sequence_bias=bias[1:], **options).scores[0][0].double().softmax(-1)
    torch.testing.assert_close(q, p * factor / (p * factor).sum(), atol=1e-6, rtol=1e-5)


def zeros(rows, *columns):
    scores = torch.tensor(rows).log_softmax(-1)
    scores[:, list(columns)] = -1e4
    return scores


class Add(LogitsProcessor):
    def __init__(self, *amounts):
        self.amounts = torch.tensor(amounts)

    def __call__(self, input_ids, scores):
        scores += self.amounts  # in place, as a user's may
        return scores


def test_zero_comes_back_only_where_nothing_else_is_left():
    scores = zeros([[1.0, 0.0, 2.0, 3.0]] * 2, 2, 3)
    none_left, some_left = (torch.tensor([left, left, 0.0, 1.0]) for left in (-torch.inf, 0.0))
    raised = KeptSupport(LogitsProcessorList([Add(0.0, -1.0, 2e4, 1.0)]))(None, scores)
    assert torch.equal(raised, scores + torch.tensor([0.0, -1.0, 0.0, 0.0]))
    assert torch.equal(scores[0, 2:], torch.tensor([-1e4, -1e4]))
    forbidden = KeptSupport(LogitsProcessorList([Add(*none_left.tolist()), Add(0.0, 0.0, 5.0, 0.0)]))(None, scores)
    assert torch.equal(forbidden, scores + none_left + torch.tensor([0.0, 0.0, 5.0, 0.0]))
    assert torch.equal(KeptSupport(LogitsProcessorList([Add(*some_left.tolist())]))(None, scores), scores)


def test_a_token_of_probability_zero_that_is_forbidden_stays_so_beside_one_that_is_raised():
    scores = zeros([[1.0, 0.0, 2.0, 3.0]], 2, 3)
    found = KeptSupport(LogitsProcessorList([Add(0.0, 0.0, 2e4, -torch.inf)]))(None, scores)
    assert torch.equal(found, scores + torch.tensor([0.0, 0.0, 0.0, -torch.inf]))


def test_a_token_that_is_made_unlikely_is_not_forbidden():
    scores = zeros([[1.0, 0.0, 2.0, 3.0]], 2, 3)
    found = KeptSupport(LogitsProcessorList([Add(-2e4, -2e4, 5.0, 0.0)]))(None, scores)
    assert torch.equal(found, scores + torch.tensor([-2e4, -2e4, 0.0, 0.0]))


def test_processors_get_the_other_arguments_of_the_call():
    class AddGiven(LogitsProcessor):
        def __call__(self, input_ids, scores, amount):
            return scores + amount

    scores = zeros([[1.0, 0.0, 2.0, 3.0]], 2, 3)
    assert torch.equal(KeptSupport(LogitsProcessorList([AddGiven()]))(None, scores, amount=-1.0), scores - 1)


@pytest.mark.parametrize("forbidden", [(), (0,), (0, 1)], ids=["none", "one row", "both rows"])
def test_complete_scores_are_asked_for_where_a_row_has_nothing_else_left(forbidden):
    scores, amounts, asked = zeros([[1.0, 0.0, 2.0, 3.0]] * 2, 2, 3), torch.zeros(2, 4), []
    amounts[list(forbidden), :2] = -torch.inf
    complete = scores - torch.tensor([0.0, 0.0, 7.0, 5.0])

    def completed(num_rows):
        asked.append(num_rows)
        return complete.double()

    found = KeptSupport(LogitsProcessorList([Add(*amounts.tolist())]), completed)(None, scores)
    assert asked == ([2] if forbidden else [])
    assert found.dtype == scores.dtype
    assert torch.equal(found, (complete if forbidden else scores) + amounts)


@pytest.mark.parametrize("scale", [1.5, 0.5])
@torch.no_grad()
def test_guidance_is_refused_for_sparse_heads_alone(scale):
    model, inputs = model_and_inputs("llama", "entmax15")
    with pytest.raises(ValueError, match="guidance_scale weighs ratios of probabilities"):
        model.generate(**inputs, max_new_tokens=1, guidance_scale=scale)
    dense, _ = model_and_inputs("llama", None)
    sparsify(dense, attn="sparsemax").generate(**inputs, max_new_tokens=1, guidance_scale=scale)


@torch.no_grad()
def test_an_ensemble_keeps_to_its_support_too():
    models = [model_and_inputs("llama", "sparsemax", seed=seed)[0] for seed in (3, 4)]
    _, inputs = model_and_inputs("llama", "sparsemax")
    p = sum(next_distribution(model, inputs, ()) for model in models)
    zero = int(p.argmin())
    assert p[zero] == 0
    options = {"max_new_tokens": 1, "do_sample": False, "sequence_bias": [[[zero], 2e4]]}
    assert Ensemble(models).generate(**inputs, **options)[0, -1] == int(p.argmax())
