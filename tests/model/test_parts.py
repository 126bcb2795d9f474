"""Models inside a sparse model: they decode from its head by themselves, and their attention is not made dense."""

import functools
from threading import Event, Thread, get_ident
from types import MethodType

import pytest
import torch
from peft import (
    MultitaskPromptTuningConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    TaskType,
    get_peft_model,
)
from torch._dynamo.exc import Unsupported
from transformers import BertConfig, BertLMHeadModel, EncoderDecoderConfig, EncoderDecoderModel, LogitsProcessor

from hf_sparse import (
    exact_search,
    is_sparse,
    log_probabilities,
    probabilities,
    raw_scores,
    sparsify,
    unsparsify,
)
from tests.peft_version import needs_fitting_peft
from tests.sweep.architectures import build
from tests.sweep.inputs import inputs_for
from tests.tiny_models import DECODER, TOKENS, labelled, spread, tiny_model, tokens

GENERATES_INSIDE = [
    ("blip-2", "Blip2ForConditionalGeneration"),
    ("instructblip", "InstructBlipForConditionalGeneration"),
    ("instructblipvideo", "InstructBlipVideoForConditionalGeneration"),
    ("kosmos-2", "Kosmos2ForConditionalGeneration"),
]
GREEDY = {"do_sample": False, "max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True}


class Noted(LogitsProcessor):
    """Keeps what it is given."""

    def __init__(self):
        self.scores = []

    def __call__(self, input_ids, scores):
        self.scores.append(scores.clone())
        return scores


def sparse_scores(scores):
    """Whether all rows are logarithms of distributions with zeros."""
    p = torch.stack(list(scores)).exp()
    return bool((p == 0).any()) and torch.allclose(p.sum(-1), torch.ones(p.shape[:-1]), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name"), GENERATES_INSIDE, ids=[kind for kind, _ in GENERATES_INSIDE])
@torch.no_grad()
def test_an_outer_generate_that_calls_an_inner_one_decodes_sparse(kind, name):
    model = build(kind, name)
    inputs = {key: value for key, value in inputs_for(kind, model).items() if key != "labels"}
    dense = model.generate(**inputs, **GREEDY)
    sparsify(model, attn=None, head="entmax15", example=inputs)
    output = model.generate(**inputs, **GREEDY)
    assert not sparse_scores(dense.scores)
    assert sparse_scores(output.scores)
    noted = Noted()
    model.generate(**inputs, num_beams=2, max_new_tokens=2, do_sample=False, logits_processor=[noted])
    assert sparse_scores(noted.scores[:1])
    (result, *_) = exact_search(model, inputs, max_new_tokens=2, width=2)
    assert result.finished_mass + result.left_mass == pytest.approx(1, abs=1e-4)
    assert result.num_expanded <= 1 + int((output.scores[0][0].exp() > 0).sum())  # of the support, not of all tokens
    unsparsify(model)
    assert not any(is_sparse(part) for part in model.modules() if hasattr(part, "generation_config"))


@torch.no_grad()
def test_the_decoder_of_an_encoder_decoder_decodes_sparse_by_itself():
    torch.manual_seed(0)
    part = {"vocab_size": 23, **TOKENS, **DECODER}
    decoder = BertConfig(**part, is_decoder=True, add_cross_attention=True)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**part), decoder)
    model = spread(EncoderDecoderModel(config=config).eval())
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
    sparsify(model, head={"name": "entmax15", "temperature": 3.0})
    states = model.encoder(tokens()).last_hidden_state
    options = {**GREEDY, "encoder_hidden_states": states, "use_cache": False}
    output = model.decoder.generate(torch.ones(2, 1, dtype=torch.long), **options)
    assert isinstance(model.decoder, BertLMHeadModel)
    assert sparse_scores(output.scores)
    inputs = {"input_ids": output.sequences, "encoder_hidden_states": states}
    with raw_scores(model), log_probabilities(model):
        log_p = model.decoder(**inputs, labels=output.sequences).logits
    with raw_scores(model):
        scores = model.decoder(**inputs).logits
    assert torch.equal(log_p, model.decoder(**inputs).logits)
    assert torch.equal(scores, model.decoder(**inputs, log_probs=False).logits)
    assert not torch.equal(scores, log_p)


PROMPTS = {
    "prompt": lambda task: PromptTuningConfig(task_type=task, num_virtual_tokens=3),
    "p-tuning": lambda task: PromptEncoderConfig(task_type=task, num_virtual_tokens=3, encoder_hidden_size=8),
    "prefix": lambda task: PrefixTuningConfig(task_type=task, num_virtual_tokens=3),
    "multitask": lambda task: MultitaskPromptTuningConfig(task_type=task, num_virtual_tokens=3, num_tasks=2),
}


@pytest.mark.parametrize(
    "method", ["prompt", "p-tuning", pytest.param("prefix", marks=needs_fitting_peft), "multitask"]
)
@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_prompt_learning_decodes_sparse_when_sparsify_comes_second_and_leaves_nothing(name, method):
    base = tiny_model(name)
    task = TaskType.SEQ_2_SEQ_LM if base.config.is_encoder_decoder else TaskType.CAUSAL_LM
    torch.manual_seed(0)
    model = get_peft_model(base, PROMPTS[method](task)).eval()
    ids = tokens()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if method == "multitask":
        inputs["task_ids"] = torch.tensor([0, 1])
    before = model.generate(**inputs, **GREEDY)
    attributes = {path: set(vars(module)) for path, module in model.named_modules()}
    sparsify(model, attn="entmax15", head="entmax15")
    output = model.generate(**inputs, **GREEDY)
    assert not sparse_scores(before.scores)
    assert sparse_scores(output.scores)
    unsparsify(model)
    assert {path: set(vars(module)) for path, module in model.named_modules()} == attributes
    after = model.generate(**inputs, **GREEDY)
    assert torch.equal(after.sequences, before.sequences)
    for ours, theirs in zip(after.scores, before.scores):
        assert torch.equal(ours, theirs)


AWAY = "would take this model's sparse attention away"


@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "t5", "bert"])
@torch.no_grad()
def test_the_attention_of_an_inner_model_is_not_made_dense(name):
    model = sparsify(tiny_model(name), attn="entmax15", head="entmax15")
    inner = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    assert inner is not model
    expected = inner(tokens()).last_hidden_state
    with pytest.raises(ValueError, match=AWAY):
        inner.set_attn_implementation("eager")
    assert torch.equal(inner(tokens()).last_hidden_state, expected)
    inner.config._attn_implementation = "sdpa"
    with pytest.raises(RuntimeError, match=AWAY):
        inner(tokens())
    with pytest.raises(RuntimeError, match=AWAY):
        model(**labelled(model))


@torch.no_grad()
def test_an_inner_model_that_knows_the_head_and_returns_hidden_states_is_called_as_before():
    model = build("fsmt", "FSMTForConditionalGeneration")
    inputs = inputs_for("fsmt", model)
    expected = model.model(**inputs).last_hidden_state
    sparsify(model, head="entmax15")
    assert model.model.get_output_embeddings() is model.get_output_embeddings()
    assert torch.equal(model.model(**inputs).last_hidden_state, expected)


@torch.no_grad()
def test_logits_under_another_name_are_refused_and_never_read_as_dense(monkeypatch):
    model, refusal = build("bert", "BertForPreTraining"), r"BertForPreTraining returns prediction_logits, .* head=None"
    for settings in ({}, {"attn": "entmax15"}, {"fused_loss": True}):
        with pytest.raises(NotImplementedError, match=refusal):
            sparsify(model, head="entmax15", **settings)
        assert not is_sparse(model)

    monkeypatch.setattr(type(model), "main_input_name", "riddles")  # no input can be made up: the first call refuses
    sparsify(model, head="entmax15")
    with pytest.raises(NotImplementedError, match=refusal):
        model(tokens())
    assert model(tokens(), log_probs=False).prediction_logits.isfinite().all()
    with pytest.raises(ValueError, match=r"does not run on example=\{'riddles'\}"):
        sparsify(unsparsify(model), head="entmax15", example={"riddles": tokens()})


# --- a wrapper around forward, as in trainers that fuse the head with their own loss ---


def fuse(model):
    """Wrap forward so that a call that says so is answered without it, by dense cross-entropy."""
    own = model.forward

    @functools.wraps(type(model).forward)
    def fused_forward(self, *args, fused_lm_head=False, **kwargs):
        if not fused_lm_head:
            return own(*args, **kwargs)
        labels = kwargs.pop("labels")
        hidden = self.base_model(*args, **kwargs).last_hidden_state
        logits = self.get_output_embeddings()(hidden)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}

    model.forward = MethodType(fused_forward, model)
    return model


def test_a_wrapper_that_answers_without_the_sparse_forward_is_refused_when_it_does():
    expected = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    inputs = labelled(expected)
    model = fuse(sparsify(tiny_model("llama"), attn="entmax15", head="entmax15"))
    assert torch.equal(model(**inputs).loss, expected(**inputs).loss)
    with pytest.raises(RuntimeError, match="LlamaForCausalLM is sparse, and fused_forward was put around its forward"):
        model(**inputs, fused_lm_head=True)
    assert torch.equal(model(**inputs).loss, expected(**inputs).loss)
    attention_only = fuse(sparsify(tiny_model("llama"), attn="entmax15"))
    assert attention_only(**inputs, fused_lm_head=True)["loss"] > 0


# --- tuples ---


@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize(("name", "in_config"), [("llama", False), ("bart", False), ("bert", False), ("bert", True)])
@torch.no_grad()
def test_log_probabilities_are_returned_in_tuples_too(name, with_labels, in_config):
    model = sparsify(tiny_model(name), head="entmax15")
    inputs = labelled(model)
    if not with_labels:
        labels = inputs.pop("labels")
        inputs |= {"decoder_input_ids": labels.clamp(min=3)} if model.config.is_encoder_decoder else {}
    expected = model(**inputs, log_probs=True)
    raw = model(**inputs)
    if in_config:
        model.config.return_dict = False
        output = model(**inputs, log_probs=True)
    else:
        output = model(**inputs, log_probs=True, return_dict=False)
    assert isinstance(output, tuple)
    assert torch.equal(output[int(with_labels)], expected.logits)
    torch.testing.assert_close(expected.logits.exp(), probabilities(model, raw.logits))
    if with_labels:
        assert torch.equal(output[0], expected.loss)


@pytest.mark.parametrize("fused_loss", [False, True])
def test_a_part_with_a_head_of_its_own_keeps_the_loss_of_its_own_logits(fused_loss):
    """CSM's depth decoder has as many classes as the head, and samples them by softmax."""
    model = build("csm", "CsmForConditionalGeneration").train()
    ids = torch.randint(3, 30, (2, 6, model.config.num_codebooks), generator=torch.Generator().manual_seed(0))
    dense = model(input_ids=ids, labels=ids)
    if fused_loss:
        with pytest.raises(ValueError, match="with labels"):
            sparsify(model, attn=None, head="entmax15", fused_loss=True)
    sparsify(model, attn=None, head="entmax15", fused_loss=fused_loss, example={"input_ids": ids, "labels": ids})
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    output = model(input_ids=ids, labels=ids)
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()] == hooks
    assert output.backbone_loss < dense.backbone_loss
    torch.testing.assert_close(output.depth_decoder_loss, dense.depth_decoder_loss)


def csm_with_labels():
    """CSM, with a sparse head beside the depth decoder's own, and a batch."""
    model = build("csm", "CsmForConditionalGeneration").eval()
    ids = torch.randint(3, 30, (2, 6, model.config.num_codebooks), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    return sparsify(model, attn=None, head="entmax15", example=batch), batch


def losses(output):
    return [float(output[name].detach()) for name in ("loss", "backbone_loss", "depth_decoder_loss")]


@pytest.mark.slow
def test_a_compiler_leaves_the_loss_of_a_part_with_a_head_of_its_own_as_it_is():
    model, batch = csm_with_labels()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    assert losses(compiled(**batch)) == losses(model(**batch))
    torch.compiler.reset()
    with pytest.raises(Unsupported, match="a head and a loss of its own; compile it without fullgraph=True"):
        torch.compile(model, backend="eager", fullgraph=True)(**batch)


def test_a_part_with_a_head_of_its_own_that_another_thread_runs_leaves_the_loss_of_the_whole():
    model, batch = csm_with_labels()
    alone, main, inside, ended, others = losses(model(**batch)), get_ident(), Event(), Event(), []
    other = Thread(target=lambda: others.append(losses(model(**batch))))

    def begin(*_):
        if get_ident() == main:
            other.start()
            assert inside.wait(60)

    def stay(*_):
        if get_ident() != main:
            inside.set()
            ended.wait(60)

    handles = [model.backbone_model.register_forward_pre_hook(begin)]
    handles.append(model.depth_decoder.model.register_forward_pre_hook(stay))
    try:
        beside = losses(model(**batch))
    finally:
        ended.set()
        other.join()
    for handle in handles:
        handle.remove()
    assert [beside, *others] == [alone, alone]
