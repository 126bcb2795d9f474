"""What logits mean, the loss from raw scores, and the distribution that is decoded."""

import math

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaForCausalLM,
    MusicgenDecoderConfig,
    MusicgenForCausalLM,
    ProphetNetConfig,
    ProphetNetForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput

from hf_sparse import losses, probabilities, raw_scores, sparsify, unsparsify
from hf_sparse.config import MapConfig
from hf_sparse.model.distribution import distribution, log_distribution
from hf_sparse.model.visible_loss import VisibleCrossEntropyLoss, with_visible_loss
from tests.tiny_models import ARCHITECTURES, CAUSAL, labelled, tiny_model, tokens

HEADS = {
    "sparsemax": ("sparsemax", lambda z, y, **o: losses.sparsemax_loss(z, y, **o)),
    "entmax": ({"name": "entmax", "alpha": 1.3}, lambda z, y, **o: losses.entmax_loss(z, y, 1.3, **o)),
    "alpha_relu": (
        {"name": "alpha_relu", "alpha": 1.5, "tau": 0.4},
        lambda z, y, **o: losses.alpha_relu_loss(z, y, 1.5, 0.4, **o),
    ),
    "softmax": ("softmax", lambda z, y, **o: nn.functional.cross_entropy(z.flatten(0, -2), y.flatten(), **o)),
}


def scored(name, logits, labels):
    """Logits and the labels they are scored against, by the model's own convention."""
    return (logits[:, :-1], labels[:, 1:]) if name in CAUSAL else (logits, labels)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_loss_is_the_maps_loss_of_the_raw_scores(name, head):
    setting, loss_function = HEADS[head]
    model = tiny_model(name)
    inputs = labelled(model)
    dense_logits = model(**inputs).logits
    output = sparsify(model, head=setting)(**inputs)
    assert torch.equal(output.logits, dense_logits)
    torch.testing.assert_close(output.loss, loss_function(*scored(name, output.logits, inputs["labels"])))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_num_items_divides_the_sum_for_every_model(name):
    model = sparsify(tiny_model(name), head="entmax15")
    inputs = labelled(model)
    output = model(**inputs, num_items_in_batch=torch.tensor(29))
    total = losses.entmax15_loss(*scored(name, output.logits, inputs["labels"]), reduction="sum")
    torch.testing.assert_close(output.loss, total / 29)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(
    "options", [{"head": "entmax15"}, {"head": "entmax15", "fused_loss": True}, {"attn": "entmax15"}]
)
def test_no_items_give_no_loss_and_are_refused_beside_labels_that_count(name, options):
    model = sparsify(tiny_model(name), **options).train()
    inputs = labelled(model)
    ignored = inputs | {"labels": torch.full_like(inputs["labels"], -100)}
    for count in (0, torch.tensor(0)):
        loss = model(**ignored, num_items_in_batch=count).loss
        loss.backward()
        assert float(loss.detach()) == 0
        assert not any(bool(p.grad.any()) for p in model.parameters() if p.grad is not None)
        with pytest.raises(ValueError, match=r"the number of items was 0, but \d+ labels of this batch count"):
            model(**inputs, num_items_in_batch=count)


@pytest.mark.parametrize("name", ["bart", "t5", "bert"])
def test_num_items_is_honoured_where_only_attention_is_sparse(name):
    model = sparsify(tiny_model(name), attn="entmax15")
    inputs = labelled(model)
    output = model(**inputs, num_items_in_batch=29)
    total = nn.functional.cross_entropy(output.logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum")
    torch.testing.assert_close(output.loss, total / 29)


class SoftTargets(LlamaForCausalLM):
    """A loss of distributions, as a model with smoothing of its own has."""

    def forward(self, input_ids=None, labels=None, rows=True, **kwargs):
        logits = self.lm_head(self.model(input_ids=input_ids).last_hidden_state)
        if labels is None:
            return CausalLMOutput(None, logits)
        y = 0.9 * nn.functional.one_hot(labels, logits.shape[-1]).float() + 0.1 / logits.shape[-1]
        if rows:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(0, 1))
        else:
            loss = nn.functional.cross_entropy(logits.movedim(-1, 1), y.movedim(-1, 1))
        return CausalLMOutput(loss, logits)


@pytest.mark.parametrize("options", [{"attn": "entmax15"}, {"head": "entmax15"}, {"head": "alpha_relu"}])
@pytest.mark.parametrize("rows", [True, False])
def test_a_distribution_is_one_target(rows, options):
    model = SoftTargets(tiny_model("llama").config).eval()
    sparsify(model, **options)
    inputs = {"input_ids": tokens(), "labels": tokens(), "rows": rows}
    expected = model(**inputs | {"rows": True}).loss
    torch.testing.assert_close(model(**inputs).loss, expected)
    torch.testing.assert_close(model(**inputs, num_items_in_batch=tokens().numel()).loss, expected)


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_label_smoothing_reaches_the_loss(name):
    model = sparsify(tiny_model(name), head="entmax15")
    inputs = labelled(model)
    output = model(**inputs, label_smoothing=0.2)
    expected = losses.entmax15_loss(*scored(name, output.logits, inputs["labels"]), label_smoothing=0.2)
    torch.testing.assert_close(output.loss, expected)
    assert not torch.allclose(output.loss, model(**inputs).loss)


def test_gradient_at_the_logits_is_p_minus_the_target():
    model = sparsify(tiny_model("t5"), head="entmax15")
    inputs = labelled(model)
    output = model(**inputs, num_items_in_batch=1)
    output.logits.retain_grad()
    output.loss.backward()
    residual = distribution(MapConfig("entmax15"), output.logits.detach())
    residual = residual - nn.functional.one_hot(inputs["labels"].clamp(min=0), 23)
    residual[inputs["labels"] == -100] = 0
    torch.testing.assert_close(output.logits.grad, residual, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"head": "entmax15"}, {"head": "entmax15", "fused_loss": True}, {"attn": "softmax"}]
)
def test_smoothing_and_class_weights_of_the_models_own_loss_are_kept(options):
    own = {"weight": torch.linspace(1, 2, 23), "label_smoothing": 0.1}
    model = sparsify(tiny_model("llama"), **options).train()
    model.loss_function = lambda logits, labels, **_: nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), **own
    )
    with raw_scores(model):
        z = model(tokens()).logits.flatten(0, 1)
    loss = losses.entmax15_loss if "head" in options else nn.functional.cross_entropy
    torch.testing.assert_close(model(tokens(), labels=tokens()).loss, loss(z, tokens().flatten(), **own))


@pytest.mark.parametrize("loss", [
    lambda z, y: nn.functional.cross_entropy(z, y),
    lambda z, y: -z.log_softmax(-1).gather(1, y[:, None]).mean(),
], ids=["cross-entropy", "log_softmax"])  # fmt: skip
def test_a_loss_over_other_classes_is_left_alone(loss):
    model = sparsify(tiny_model("bert"), head="sparsemax")

    def with_second_loss(self, *args, **kwargs):
        output = type(self)._dense_forward(self, *args, **kwargs)
        output["extra"] = loss(torch.zeros(3, 2), torch.ones(3, dtype=torch.long))
        return output

    model._dense_forward = with_second_loss
    assert float(model(**labelled(model)).extra) == pytest.approx(math.log(2))


def test_cross_entropy_outside_the_model_is_untouched():
    model = sparsify(tiny_model("bart"), head="sparsemax")
    before = nn.functional.cross_entropy(torch.zeros(1, 23), torch.zeros(1, dtype=torch.long))
    model(**labelled(model))
    assert torch.equal(nn.functional.cross_entropy(torch.zeros(1, 23), torch.zeros(1, dtype=torch.long)), before)


@pytest.mark.parametrize("head", ["entmax15", "sparsemax", {"name": "alpha_relu", "tau": 0.5}])
def test_log_distribution_is_a_fixed_point_of_log_softmax_with_exact_zeros(head):
    choice = MapConfig.parse(head, "head")
    z = 3 * torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    log_p, p = log_distribution(choice, z), distribution(choice, z)
    torch.testing.assert_close(torch.log_softmax(log_p, -1), log_p, atol=1e-5, rtol=1e-5)
    assert torch.equal(log_p.exp() == 0, p == 0)
    assert torch.equal(torch.softmax(log_p, -1) == 0, p == 0)
    torch.testing.assert_close(log_p.exp(), p)
    off = p == 0
    order = z.masked_fill(~off, -torch.inf).argmax(-1)
    assert torch.equal(log_p.masked_fill(~off, -torch.inf).argmax(-1), order)


def test_alpha_relu_is_normalized_for_decoding_and_never_falls_back_to_softmax():
    z = torch.tensor([[1.0, 2.0, 3.0]])
    lower, higher = (MapConfig.parse({"name": "alpha_relu", "tau": tau}, "head") for tau in (0.25, 9.0))
    expected = torch.tensor([[0.0625, 0.5625, 1.5625]])
    torch.testing.assert_close(distribution(lower, z), expected / expected.sum())
    assert torch.equal(distribution(higher, z), torch.tensor([[0.0, 0.0, 1.0]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_distribution_of_half_precision_logits_is_float32(dtype):
    log_p = log_distribution(MapConfig("entmax15"), torch.randn(3, 50).to(dtype))
    assert log_p.dtype == torch.float32
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3))


@pytest.mark.parametrize("head", ["entmax15", {"name": "entmax", "alpha": 1.3, "temperature": 2.0}, "softmax",
                                  {"name": "alpha_relu", "tau": 9.0, "centered": True}])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_log_distributions_of_many_rows_are_written_a_few_at_a_time(head, dtype, monkeypatch):
    choice = MapConfig.parse(head, "head")
    z = 3 * torch.randn(2, 25, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole, sizes = log_distribution(choice, z), []
    monkeypatch.setattr("hf_sparse.model.distribution._AT_A_TIME", 4 * 40)
    monkeypatch.setattr(
        "hf_sparse.model.distribution.distribution", lambda *given: sizes.append(len(given[1])) or distribution(*given)
    )
    found = log_distribution(choice, z)
    rows = 4 * torch.get_num_threads()
    assert sizes == [min(rows, 50 - start) for start in range(0, 50, rows)]
    assert found.shape == whole.shape
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-5)
    assert torch.equal(found.exp() == 0, whole.exp() == 0)


def test_log_distributions_that_are_differentiated_are_written_at_once(monkeypatch):
    monkeypatch.setattr("hf_sparse.model.distribution._AT_A_TIME", 1)
    z = torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: log_distribution(MapConfig("entmax15"), z), z)


def test_a_dense_head_keeps_its_raw_scores():
    ids = tokens()
    model = sparsify(tiny_model("llama"), attn={"decoder": "softmax"})
    raw = model(ids).logits
    torch.testing.assert_close(raw, tiny_model("llama")(ids).logits)
    torch.testing.assert_close(probabilities(model, raw), torch.softmax(raw, -1))


def test_log_probs_of_a_dense_head_are_those_of_softmax():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    ids = tokens()
    torch.testing.assert_close(
        model(ids, log_probs=True).logits, torch.log_softmax(model(ids).logits, -1), atol=1e-5, rtol=1e-5
    )


def test_label_smoothing_without_a_language_model_head_is_refused():
    config = BertConfig(vocab_size=23, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    model = sparsify(BertForSequenceClassification(config), attn="entmax15")
    with pytest.raises(ValueError, match="BertForSequenceClassification has no single head over a vocabulary"):
        model(tokens(), labels=torch.tensor([0, 1]), label_smoothing=0.1)


def tiny_musicgen():
    """A decoder with a list of heads, one for each of two codebooks."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MusicgenDecoderConfig(**sizes, num_codebooks=2, initializer_factor=0.3, pad_token_id=16, bos_token_id=16)
    return MusicgenForCausalLM(config).eval()


def test_the_loss_of_a_list_of_heads_is_the_models_own():
    codes = torch.randint(0, 16, (2 * 2, 5), generator=torch.Generator().manual_seed(0))  # 2 rows, 2 codebooks
    inputs = {"input_ids": codes, "labels": codes.view(2, 2, 5).transpose(1, 2)}
    dense, model = tiny_musicgen(), tiny_musicgen()
    sparsify(model, attn="softmax", example={"input_ids": codes})
    torch.testing.assert_close(model(**inputs).loss, dense(**inputs).loss, atol=1e-5, rtol=1e-5)
    assert not model.accepts_loss_kwargs  # a mean: a trainer divides by the number of batches it accumulates
    with pytest.raises(ValueError, match="MusicgenForCausalLM has no single head over a vocabulary"):
        model(**inputs, label_smoothing=0.1)
    with pytest.raises(ValueError, match="the head of MusicgenForCausalLM is a ModuleList"):
        model(**inputs, num_items_in_batch=7)  # its loss would not be divided by that


def tiny_prophetnet(**settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "hidden_size": 32, "num_decoder_layers": 1, "num_decoder_attention_heads": 4}
    return ProphetNetForCausalLM(ProphetNetConfig(**sizes, decoder_ffn_dim=32, init_std=0.3, **settings)).eval()


def test_nll_loss_of_log_softmax_is_the_maps_loss_too():
    dense, model = tiny_prophetnet(), sparsify(tiny_prophetnet(), head="entmax15")
    inputs = {"input_ids": tokens(), "labels": tokens()}
    output = model(**inputs, num_items_in_batch=29)
    z = torch.stack([output.logits, output.logits_ngram[:, 0]], dim=1)  # its two streams, each with all labels
    expected = losses.entmax15_loss(z, tokens()[:, None].expand(-1, 2, -1), reduction="sum")
    torch.testing.assert_close(output.loss, expected / (2 * 29))
    attention = sparsify(tiny_prophetnet(), attn="softmax")
    torch.testing.assert_close(attention(**inputs).loss, dense(**inputs).loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("log_softmax", [nn.functional.log_softmax, torch.log_softmax, torch.Tensor.log_softmax])
def test_log_softmax_by_any_of_its_names_is_seen(log_softmax):
    model = sparsify(tiny_model("llama"), head="entmax15")
    model.loss_function = lambda logits, labels, **_: nn.functional.nll_loss(
        log_softmax(logits.flatten(0, 1), -1), labels.flatten()
    )
    output = model(tokens(), labels=tokens())
    torch.testing.assert_close(output.loss, losses.entmax15_loss(output.logits, tokens()))


@pytest.mark.parametrize("settings", [{"attn": "softmax"}, {"head": "entmax15"}], ids=["attention", "head"])
@pytest.mark.parametrize("streams", [{}, {"ngram": 3}, {"disable_ngram_loss": True}, {"ngram": 1}])
def test_labels_that_are_scored_in_several_streams_are_divided_by_all_of_them(streams, settings):
    model = sparsify(tiny_prophetnet(**streams), **settings)
    labels = tokens()
    labels[0, :4] = -100
    mean = model(tokens(), labels=labels).loss
    torch.testing.assert_close(model(tokens(), labels=labels, num_items_in_batch=(labels != -100).sum()).loss, mean)
    ignored = torch.full_like(labels, -100)
    assert float(model(tokens(), labels=ignored, num_items_in_batch=5).loss.detach()) == 0


def test_a_loss_that_no_sparse_one_can_stand_in_for_is_refused():
    model = sparsify(tiny_prophetnet(eps=0.1), head="entmax15")
    with pytest.raises(NotImplementedError, match=r"takes more than nll_loss from log_softmax \(sum\)"):
        model(tokens(), labels=tokens())
    dense, attention = tiny_prophetnet(eps=0.1), sparsify(tiny_prophetnet(eps=0.1), attn="softmax")
    expected = dense(tokens(), labels=tokens()).loss
    torch.testing.assert_close(attention(tokens(), labels=tokens()).loss, expected, atol=1e-5, rtol=1e-5)

    model = sparsify(tiny_model("llama"), head="entmax15")
    model.loss_function = lambda logits, labels, **_: logits.logsumexp(-1).mean()
    with pytest.raises(NotImplementedError, match="LlamaForCausalLM computed a loss in which no cross-entropy over"):
        model(**labelled(model))
    assert model(tokens()).loss is None


def test_a_loss_that_kernels_put_into_the_class_of_a_model_is_refused(monkeypatch):
    """As Liger's AutoLigerKernelForCausalLM does before it loads a model."""

    dense = LlamaForCausalLM.forward

    def with_fused_loss(self, input_ids=None, labels=None, **kwargs):
        if labels is None:
            return dense(self, input_ids, **kwargs)
        z = self.model(input_ids=input_ids)[0][:, :-1] @ self.lm_head.weight.T
        return CausalLMOutput(loss=(z.logsumexp(-1) - z.gather(-1, labels[:, 1:, None])[..., 0]).mean())

    monkeypatch.setattr(LlamaForCausalLM, "forward", with_fused_loss)
    for fused_loss in (False, True):
        with pytest.raises(NotImplementedError, match=r"for Liger's fused_linear_cross_entropy=False"):
            sparsify(tiny_model("llama"), head="entmax15", fused_loss=fused_loss)(tokens(), labels=tokens())


class GivesDict(LlamaForCausalLM):
    def forward(self, input_ids, labels=None):
        return {"loss": None, **super().forward(input_ids, labels=labels)}


class GivesTuple(LlamaForCausalLM):
    def forward(self, input_ids, labels=None):
        return super().forward(input_ids, labels=labels).to_tuple()


@pytest.mark.parametrize(("cls", "kind"), [(GivesDict, "dict"), (GivesTuple, "tuple")])
def test_a_model_of_your_own_that_returns_no_output_of_transformers_trains_with_sparse_attention_alone(cls, kind):
    model, ids = tiny_model("llama"), tokens()
    expected = sparsify(tiny_model("llama"), attn="entmax15")(ids, labels=ids).loss
    model.__class__ = cls
    for fused_loss in (False, True):
        with pytest.raises(NotImplementedError, match=rf"{cls.__name__} returns a {kind}, .* as CausalLMOutput, or"):
            sparsify(model, head="entmax15", fused_loss=fused_loss)
        assert type(model) is cls
    output = sparsify(model, attn="entmax15")(ids, labels=ids)
    assert torch.equal(output["loss"] if kind == "dict" else output[0], expected)


class LossOfItsOwn(BertForMaskedLM):
    def forward(self, input_ids, labels=None):
        logits = self.cls(self.bert(input_ids)[0])
        return MaskedLMOutput(loss=logits.logsumexp(-1).mean(), logits=logits)


def test_a_dense_loss_that_nobody_divides_is_refused():
    model = tiny_model("bert")
    model.__class__ = LossOfItsOwn
    inputs = labelled(sparsify(model, attn="entmax15"))
    assert model(**inputs).loss > 0
    with pytest.raises(NotImplementedError, match=r"LossOfItsOwn computed .* is not divided by num_items_in_batch"):
        model(**inputs, num_items_in_batch=29)
    with pytest.raises(NotImplementedError, match="no cross-entropy over the classes of its head was seen"):
        model(**inputs, label_smoothing=0.1)


def test_a_dense_loss_that_takes_the_number_of_items_is_trusted_with_it():
    model = sparsify(tiny_model("llama"), attn="softmax")
    model.loss_function = lambda logits, labels, num_items_in_batch, **_: (
        logits.logsumexp(-1).sum() / num_items_in_batch
    )
    one, four = (model(**labelled(model), num_items_in_batch=count).loss for count in (1, 4))
    torch.testing.assert_close(one, 4 * four)


def test_a_loss_that_the_model_keeps_is_given_back():
    model = tiny_model("bert")
    model.kept = nn.CrossEntropyLoss()
    sparsify(model, head="entmax15")
    assert type(model.kept) is VisibleCrossEntropyLoss
    unsparsify(model)
    assert type(model.kept) is nn.CrossEntropyLoss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{"head": "entmax15"}, {"attn": "entmax15"}], ids=["head", "attention"])
@pytest.mark.parametrize("sparse_first", [False, True])
@torch.no_grad()
def test_a_head_that_torch_quantized_dynamically_has_the_loss_of_its_map(settings, sparse_first):
    model = tiny_model("llama")
    if sparse_first:
        sparsify(model, **settings)
    model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    if not sparse_first:
        sparsify(model, **settings)
    assert callable(model.lm_head.weight)
    inputs = labelled(model)
    output = model(**inputs)
    expected = MapConfig.parse(settings.get("head", "softmax"), "head").loss()
    torch.testing.assert_close(output.loss, expected(output.logits[:, :-1], inputs["labels"][:, 1:]))
    with pytest.raises(ValueError, match="the head of LlamaForCausalLM is not one linear layer"):
        sparsify(unsparsify(model), head="entmax15", fused_loss=True)


def scaled(z, y, *, scale=2.0):
    return scale * nn.CrossEntropyLoss()(z, y)


def test_a_copy_keeps_defaults_of_arguments_by_name():
    z, y = torch.randn(2, 5), torch.tensor([0, 3])
    assert with_visible_loss(scaled) is not scaled
    assert torch.equal(with_visible_loss(scaled)(z, y), scaled(z, y))
