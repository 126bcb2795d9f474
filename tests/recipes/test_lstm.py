"""The encoder-decoder of LSTMs: its equations, padding, causality; sparse, saved and undone as any other model."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, Trainer, TrainingArguments

from hf_sparse import sparsify, unsparsify
from hf_sparse.attention import observe
from hf_sparse.functional import entmax15
from recipes.inflection.lstm import LSTMConfig, LSTMForConditionalGeneration
from tests.tolerances import GRADIENT

SOURCE = torch.tensor([[4, 5, 6, 2], [7, 2, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
TARGET = torch.tensor([[1, 8, 9, 4], [1, 5, 5, 6]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return LSTMForConditionalGeneration(LSTMConfig(vocab_size=11, hidden_size=8, **tokens)).double().eval()


def logits_of(model, source=SOURCE, mask=MASK, target=TARGET):
    return model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits


@torch.no_grad()
def test_the_first_output_is_that_of_the_equations(model):
    keys, _ = model.encoder.lstm(model.encoder.embedding(SOURCE[:1]))
    state = torch.cat([keys[:, -1, :4], keys[:, 0, 4:]], -1)
    inputs = torch.cat([model.decoder.embedding(TARGET[:1, 0]), torch.zeros(1, 8, dtype=torch.float64)], -1)
    for cell in model.decoder.cells:
        inputs, _ = cell(inputs, (state, torch.zeros_like(state)))
    attention = model.decoder.cross_attention
    weights = torch.softmax(keys[0] @ attention.score.weight @ inputs[0], 0)
    output = torch.tanh(attention.out.weight @ torch.cat([weights @ keys[0], inputs[0]]))
    expected = model.lm_head.weight @ output + model.lm_head.bias
    torch.testing.assert_close(logits_of(model)[0, 0], expected, atol=GRADIENT[torch.float64], rtol=0)


@torch.no_grad()
def test_each_output_is_read_by_the_next_step(model):
    before = logits_of(model)
    model.decoder.cells[0].weight_ih[:, 8:] += 1.0  # of the output before
    after = logits_of(model)
    assert torch.equal(after[:, 0], before[:, 0])
    assert not torch.isclose(after[:, 1:], before[:, 1:]).all(-1).any()


@torch.no_grad()
def test_neither_padding_nor_later_tokens_change_an_output(model):
    together = logits_of(model)
    alone = logits_of(model, SOURCE[1:, :2], MASK[1:, :2], TARGET[1:, :2])
    torch.testing.assert_close(alone[0], together[1, :2], atol=GRADIENT[torch.float64], rtol=0)


def test_padding_on_the_left_is_refused(model):
    with pytest.raises(ValueError, match="padded on the right"):
        logits_of(model, mask=MASK.flip(1))


def test_accumulated_batches_count_as_one(model, tmp_path):
    rows = [{"input_ids": source, "labels": target} for source, target in zip(SOURCE.tolist(), TARGET.tolist())] * 2
    model.encoder.lstm.dropout, model.decoder.dropout.p, losses = 0.0, 0.0, []
    for accumulated in (1, 2):
        arguments = TrainingArguments(
            str(tmp_path), max_steps=1, learning_rate=0.0, per_device_train_batch_size=4 // accumulated,
            gradient_accumulation_steps=accumulated, use_cpu=True, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        losses.append(Trainer(deepcopy(model), arguments, train_dataset=rows).train().training_loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@torch.no_grad()
def test_generate_decodes_from_these_logits(model):
    found = model.generate(SOURCE, attention_mask=MASK, do_sample=False, max_new_tokens=5, min_new_tokens=5)
    best = logits_of(model, target=found[:, :-1]).index_fill(-1, torch.tensor([2]), -torch.inf).argmax(-1)
    assert torch.equal(found[:, 1:], best)


def test_the_loss_is_that_of_the_labels(model):
    labels = torch.tensor([[8, 9, 4, 2], [5, 2, -100, -100]])
    output = model(input_ids=SOURCE, attention_mask=MASK, labels=labels)
    target = torch.tensor([[1, 8, 9, 4], [1, 5, 2, 0]])
    expected = torch.nn.functional.cross_entropy(logits_of(model, target=target).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(output.loss, expected)


@torch.no_grad()
def test_it_is_made_sparse_saved_loaded_and_undone(model, tmp_path):
    dense = logits_of(model)
    sparsify(model, attn="entmax15", head="sparsemax")
    with observe(model) as supports:
        sparse = logits_of(model)
    assert list(supports) == ["decoder.cross_attention"]
    assert (torch.softmax(sparse, -1) == 0).any()
    found = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET, output_attentions=True)
    weights = found.cross_attentions[0]
    assert weights.shape == (2, 1, 4, 4)
    assert (weights[1, ..., 2:] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 4, dtype=torch.float64))

    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert torch.equal(logits_of(loaded), sparse)
    assert torch.equal(logits_of(unsparsify(model)), dense)


@torch.no_grad()
def test_sparse_weights_are_the_map_of_the_scores(model):
    model.decoder.cross_attention.score.weight *= 1000.0
    scores = []
    model.decoder.cross_attention.score.register_forward_hook(lambda _, __, output: scores.append(output))
    sparsify(model, attn="entmax15")
    scores.clear()
    output = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET, output_attentions=True)
    keys = output.encoder_last_hidden_state
    products = (torch.stack(scores, 1) @ keys.mT).masked_fill(MASK[:, None] == 0, -torch.inf)
    expected = entmax15(products)
    assert (expected[0] == 0).any()
    torch.testing.assert_close(output.cross_attentions[0][:, 0], expected, atol=GRADIENT[torch.float64], rtol=0)
