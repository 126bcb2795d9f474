"""torch.compile computes what eager mode computes, in one graph."""

import shutil

import pytest
import torch
from torch import nn
from transformers import BertForMaskedLM, CompileConfig, StaticCache
from transformers.modeling_outputs import MaskedLMOutput

from hf_sparse import SparseTrainer, sparsify, unsparsify
from hf_sparse.attention import observe
from hf_sparse.cache_name import CACHE
from tests.tiny_models import labelled, tiny_model, tokens
from tests.tolerances import GRADIENT
from tests.training.runs import arguments, rows_of_uneven_length

pytestmark = pytest.mark.slow
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler, there is none"
)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()


@pytest.fixture(autouse=True, scope="module")
def compiled_code_in_a_folder_of_its_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        yield


def loss_and_gradients(run, model, **inputs):
    loss = run(**inputs).loss
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return loss.detach(), gradients


def assert_compiles_to_the_same(model, backend="aot_eager", fullgraph=True, **options):
    inputs = labelled(model) | options
    loss, gradients = loss_and_gradients(model, model, **inputs)
    run = torch.compile(model, backend=backend, fullgraph=fullgraph)
    compiled_loss, compiled = loss_and_gradients(run, model, **inputs)
    torch.testing.assert_close(compiled_loss, loss, atol=1e-5, rtol=1e-5)
    assert compiled.keys() == gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(compiled[name], gradient, atol=GRADIENT[torch.float32] * largest, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bart", "t5", "bert"])
def test_a_training_step_is_one_graph_with_the_sparse_loss_and_its_gradients(name):
    model = sparsify(tiny_model(name), attn="sparsemax", head="entmax15")
    assert_compiles_to_the_same(model, num_items_in_batch=29)


@needs_compiler
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_inductor_trains_as_eager_mode_does(name):
    model = sparsify(tiny_model(name, num_hidden_layers=1), attn="entmax15", head="sparsemax")
    assert_compiles_to_the_same(model, backend="inductor")


@needs_compiler
@torch.no_grad()
def test_inductor_decodes_from_a_static_cache():
    model = sparsify(tiny_model("llama", num_hidden_layers=1), attn="entmax15", head="sparsemax")
    ids, cache = tokens(length=9), StaticCache(model.config, max_cache_len=12)
    model(ids[:, :7], **{CACHE: cache}, log_probs=True)
    step = torch.compile(model, fullgraph=True)
    whole = model(ids, log_probs=True).logits
    for position in (7, 8):
        logits = step(ids[:, position : position + 1], **{CACHE: cache}, log_probs=True).logits
        torch.testing.assert_close(logits[:, 0], whole[:, position], atol=1e-3, rtol=1e-4)
        assert torch.equal(logits[:, 0].exp() == 0, whole[:, position].exp() == 0)


class LossByAttribute(BertForMaskedLM):
    """Makes its loss in another way than BERT does."""

    def forward(self, input_ids, labels=None):
        logits = self.cls(self.bert(input_ids)[0])
        loss = None if labels is None else self.loss(logits.view(-1, 23), labels.view(-1))
        return MaskedLMOutput(loss=loss, logits=logits)

    def loss(self, z, y):
        return nn.functional.cross_entropy(z, y)


class LossOfNN(LossByAttribute):
    def forward(self, input_ids, labels=None):
        logits = self.cls(self.bert(input_ids)[0])
        loss = None if labels is None else nn.CrossEntropyLoss()(logits.view(-1, 23), labels.view(-1))
        return MaskedLMOutput(loss=loss, logits=logits)


class LossInAMethod(LossByAttribute):
    def loss(self, z, y):
        return nn.CrossEntropyLoss()(z, y)


class LossKept(LossByAttribute):
    def loss(self, z, y):
        return self.kept(z, y)


def loss_in_a_function(z, y):
    return nn.CrossEntropyLoss()(z, y)


class LossElsewhere(LossByAttribute):
    def loss(self, z, y):
        return loss_in_a_function(z, y)


def bert_of(cls):
    model = tiny_model("bert", num_hidden_layers=1)
    model.__class__ = cls
    model.kept = nn.CrossEntropyLoss()
    return model


@pytest.mark.parametrize("cls", [LossByAttribute, LossOfNN, LossKept])
def test_a_loss_is_seen_however_the_forward_names_it(cls):
    assert_compiles_to_the_same(sparsify(bert_of(cls), head="entmax15"))


def test_a_dense_loss_in_a_method_is_divided_compiled_or_not():
    model = sparsify(bert_of(LossInAMethod), attn="sparsemax")
    inputs = labelled(model)
    mean, divided = model(**inputs).loss, model(**inputs, num_items_in_batch=29).loss
    torch.testing.assert_close(divided, mean * (inputs["labels"] != -100).sum() / 29)
    assert_compiles_to_the_same(model, num_items_in_batch=29)


def test_a_loss_that_a_compiled_model_hides_is_refused_and_never_dense():
    model = sparsify(bert_of(LossElsewhere), head="entmax15")
    assert model(**labelled(model)).loss > 0
    with pytest.raises(NotImplementedError, match="no cross-entropy over the classes of its head was seen"):
        torch.compile(model, backend="aot_eager")(**labelled(model))


def test_a_break_in_the_graph_does_not_hide_the_loss():
    model = sparsify(tiny_model("bert", num_hidden_layers=1), head="entmax15")
    model.cls.register_forward_pre_hook(lambda *_: torch._dynamo.graph_break())
    assert_compiles_to_the_same(model, fullgraph=False)


def test_a_model_that_is_compiled_in_parts_has_the_same_loss():
    model = sparsify(tiny_model("bart", encoder_layers=1, decoder_layers=1), attn="sparsemax", head="entmax15")
    expected = model(**labelled(model)).loss
    model.model.encoder.compile(backend="aot_eager")
    model.model.decoder.compile(backend="aot_eager")
    torch.testing.assert_close(model(**labelled(model)).loss, expected)


def test_layers_that_are_compiled_one_by_one_share_one_graph():
    model = sparsify(tiny_model("llama"), attn="sparsemax", head="entmax15")
    inputs = {**labelled(model), "use_cache": False}  # a cache tells layers apart, dense or sparse
    expected = model(**inputs).loss
    torch._dynamo.utils.counters.clear()
    for layer in model.model.layers:
        layer.compile(backend="eager")
    torch.testing.assert_close(model(**inputs).loss, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@torch.no_grad()
def test_a_forward_that_is_compiled_in_its_place_gives_the_sparse_logits_loss_and_strings():
    model = sparsify(tiny_model("llama", num_hidden_layers=1).double(), attn="entmax15", head="entmax15")
    inputs, settings = labelled(model), {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    ids = inputs["input_ids"]
    loss, logits, strings = model(**inputs).loss, model(ids).logits, model.generate(ids, **settings)
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    for _ in range(2):
        torch.testing.assert_close(model(ids).logits, logits)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(model(**inputs).loss, loss)
    assert torch.equal(model.generate(ids, **settings), strings)


@torch.no_grad()
def test_static_cache_generation_agrees_with_the_dynamic_cache():
    model = sparsify(tiny_model("llama"), attn="entmax15", head={"name": "alpha_relu", "tau": "auto"})
    inputs = {"input_ids": labelled(model)["input_ids"], "max_new_tokens": 4, "num_beams": 2, "do_sample": False}
    assert torch.equal(model.generate(**inputs, cache_implementation="static"), model.generate(**inputs))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_trainer_compiles(name, tmp_path):
    logs = []
    for options in ({}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}):
        model = sparsify(tiny_model(name, num_hidden_layers=1), attn="sparsemax", head="sparsemax")
        args = arguments(tmp_path, **options)
        trainer = SparseTrainer(model, args, train_dataset=rows_of_uneven_length())
        trainer.train()
        logs.append(trainer.state.log_history[0])
    for measure in ("loss", "head_support", "attention_support", "attention_zero_rate"):
        assert logs[1][measure] == pytest.approx(logs[0][measure], rel=1e-4)


def test_counting_supports_does_not_break_the_graph():
    model = sparsify(tiny_model("llama", num_hidden_layers=1), attn="sparsemax", head="entmax15")
    with observe(model) as counts:
        expected = model(**labelled(model)).loss
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    with observe(model) as compiled:
        torch.testing.assert_close(run(**labelled(model)).loss, expected)
    ((_, count), (_, again)) = (*counts.items(), *compiled.items())
    assert (again.nonzero, again.rows, again.keys) == (count.nonzero, count.rows, count.keys)


@torch.no_grad()
def test_a_compiled_decoding_step_with_static_cache_is_one_graph_and_decodes_the_same():
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    ids = labelled(model)["input_ids"]
    compile_config = CompileConfig(backend="eager", mode=None, fullgraph=False)
    compile_config._compile_all_devices = True
    compiled = model.generate(ids, **settings, cache_implementation="static", compile_config=compile_config)
    eager = model.generate(ids, **settings)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert torch.equal(compiled.sequences, eager.sequences)
    for ours, theirs in zip(compiled.scores, eager.scores, strict=True):
        torch.testing.assert_close(ours.exp(), theirs.exp(), atol=1e-5, rtol=1e-4)


def test_what_was_compiled_while_the_model_was_sparse_runs_the_dense_model_after_undo():
    dense = tiny_model("llama").eval()
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15").eval()
    compiled = torch.compile(model, backend="eager")
    sparse = compiled(tokens()).logits
    unsparsify(model)
    assert torch.equal(compiled(tokens()).logits, dense(tokens()).logits)
    sparsify(model, attn="entmax15", head="entmax15")
    assert torch.equal(compiled(tokens()).logits, sparse)
