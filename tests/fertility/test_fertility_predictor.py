"""Predicted fertilities: the expectation plus a constant, trained with Trainer, saved and loaded."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from hf_sparse import FertilityCollator, FertilityPredictor
from hf_sparse.fertility.counts import check_counts
from hf_sparse.fertility.predictor import fertility_dataset


def tagger(num_labels=4, seed=0):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=12,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=num_labels,
        initializer_range=0.3,
        hidden_dropout_prob=0.0,
    )
    return BertForTokenClassification(config)


IDS = torch.tensor([[3, 4, 5], [6, 7, 0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize("constant", [0.0, 1.0, 2.5])
def test_bounds_are_the_expected_fertility_plus_the_constant(constant):
    model = tagger().train()
    bounds = FertilityPredictor(model, constant)(IDS, MASK)
    with torch.no_grad():
        p = model.eval()(input_ids=IDS, attention_mask=MASK).logits.softmax(-1)
    expected = constant + p[..., 1] + 2 * p[..., 2] + 3 * p[..., 3]
    torch.testing.assert_close(bounds, expected * MASK)
    assert bounds[1, 2] == 0


def test_padding_does_not_change_the_bounds():
    predictor = FertilityPredictor(tagger())
    torch.testing.assert_close(predictor(IDS, MASK)[1, :2], predictor(IDS[1:, :2])[0])


def test_constant_is_one_unless_given_and_comes_back_with_the_model(tmp_path):
    assert FertilityPredictor(tagger()).constant == 1
    predictor = FertilityPredictor(tagger(), 0.5)
    predictor.save_pretrained(tmp_path)
    again = FertilityPredictor.from_pretrained(tmp_path)
    assert again.constant == 0.5
    assert torch.equal(again(IDS, MASK), predictor(IDS, MASK))
    assert FertilityPredictor.from_pretrained(tmp_path, constant=2).constant == 2


def test_rows_have_counts_as_labels_cut_at_the_largest_class():
    rows = fertility_dataset([[3, 4], [5]], [[0, 9], [2]], max_fertility=3)
    assert rows[0] == {"input_ids": [3, 4], "attention_mask": [1, 1], "labels": [0, 3]}
    assert rows[1]["labels"] == [2]


def test_trainer_teaches_fertilities_that_depend_on_the_token(tmp_path):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 12, (64, 5), generator=generator).tolist()
    counts = [[token % 3 for token in row] for row in ids]
    model = tagger(num_labels=3)
    arguments = TrainingArguments(
        str(tmp_path), max_steps=60, learning_rate=2e-2, per_device_train_batch_size=32, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    from tokenizers import Tokenizer, models

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0})), pad_token="[PAD]")
    collator = DataCollatorForTokenClassification(tokenizer)
    Trainer(model, arguments, collator, train_dataset=fertility_dataset(ids, counts, 2)).train()
    bounds = FertilityPredictor(model, constant=0)(torch.arange(3, 12)[None])[0]
    torch.testing.assert_close(bounds, torch.arange(3, 12) % 3 * 1.0, atol=0.3, rtol=0)


def test_wrong_input_is_refused():
    with pytest.raises(TypeError, match="must be a token classification model, was BertForMaskedLM"):
        FertilityPredictor(BertForMaskedLM(tagger().config))
    with pytest.raises(ValueError, match="constant must be a finite number >= 0, was -1"):
        FertilityPredictor(tagger(), -1)
    with pytest.raises(ValueError, match="constant must be a finite number >= 0, was inf"):
        FertilityPredictor(tagger(), float("inf"))  # times the mask it would be NaN at padding
    with pytest.raises(ValueError, match="max_fertility must be at least 1, was 0"):
        fertility_dataset([[1]], [[1]], 0)
    with pytest.raises(ValueError, match="one count for each token"):
        fertility_dataset([[1, 2]], [[1]], 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_collator_pads_fertilities_where_tokens_are_padded(side):
    from tokenizers import Tokenizer, models

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0})), pad_token="[PAD]", padding_side=side
    )
    collator = FertilityCollator(DataCollatorForSeq2Seq(tokenizer))
    rows = [{"input_ids": [3, 4, 5], "labels": [7]}, {"input_ids": [6, 7], "labels": [7, 8]}]
    bounded = [row | {"fertility": bounds} for row, bounds in zip(rows, ([1, 2.5, 0], [3, 4]))]
    batch = collator(bounded)
    padded = [0, 3, 4] if side == "left" else [3, 4, 0]
    assert torch.equal(batch["fertility"], torch.tensor([[1, 2.5, 0], padded]))
    assert batch["labels"].shape == (2, 2)
    assert "fertility" not in collator(rows)
    with pytest.raises(ValueError, match=r"a fertility for each token, \[3, 2\], had \[3\]"):
        collator([bounded[0], rows[1]])
    with pytest.raises(ValueError, match=r"\[3, 2\], had \[2, 2\]"):
        collator([bounded[0] | {"fertility": [1, 2]}, bounded[1]])
    with pytest.raises(ValueError, match="makes no attention_mask"):
        FertilityCollator(lambda rows: {})(bounded)


def test_counts_that_are_none_are_refused():
    with pytest.raises(ValueError, match="counts must be at least 0, was -1 in sentence 0"):
        check_counts([[1, 2]], [[1, -1]])
    with pytest.raises(TypeError, match=r"counts must be whole numbers, was 1\.7 in sentence 1"):
        check_counts([[1], [1, 2]], [[1], [1, 1.7]])
