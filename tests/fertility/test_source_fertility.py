"""Predicted and guided bounds that a model works out itself: in every way of calling it, and wherever it goes."""

import copy
import json
import pickle

import pytest
import torch
import transformers
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    BartForConditionalGeneration,
    BertConfig,
    BertForTokenClassification,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
)

from hf_sparse import (
    FertilityPredictor,
    GuidedFertility,
    SparseSeq2SeqTrainer,
    SparseTrainingArguments,
    exact_search,
    from_pretrained,
    probabilities,
    save_pretrained,
    sparsify,
    unsparsify,
)
from hf_sparse.fertility.source import source_of
from hf_sparse.generation.suggest import Continuations
from tests.local_hub import LocalHub
from tests.tiny_models import PAD, tiny_model, tokens

NAMES = ["bart", "marian", "t5"]
SOURCE, TARGET = tokens(2, 6), tokens(2, 9, seed=5)
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
INPUTS = {"input_ids": SOURCE.masked_fill(MASK == 0, PAD), "attention_mask": MASK}


def predictor(seed=0, constant=0.3):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=4,
        initializer_range=0.5,
    )  # fmt: skip
    return FertilityPredictor(BertForTokenClassification(config), constant)


def guided(seed=1):
    return GuidedFertility(torch.randint(1, 4, (30,), generator=torch.Generator().manual_seed(seed)))


MADE = {"predicted": predictor, "guided": guided}
EVERY_WORD = pytest.mark.parametrize("word", MADE)


def choice(word, **settings):
    return {"cross": {"name": "csparsemax", "fertility": word, "exhaustion": 0.2, **settings}}


def bounded(name, word="predicted", **settings):
    """A model that works out its bounds, the dense one in float64, and the same with bounds in every call."""
    made = MADE[word]()
    model, other = (tiny_model(name).double() for _ in range(2))
    for one in (model, other):
        one.generation_config.forced_eos_token_id = None
    return (
        sparsify(model, attn=choice(word), fertility=made, **settings),
        sparsify(other, attn=choice("given")),
        made(**INPUTS),
    )


@EVERY_WORD
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_plain_call_is_one_with_the_bounds_handed_over(name, word):
    model, other, bounds = bounded(name, word)
    expected = other(**INPUTS, labels=TARGET, fertility=bounds, output_attentions=True)
    output = model(**INPUTS, labels=TARGET, output_attentions=True)
    assert torch.equal(output.logits, expected.logits)
    assert torch.equal(output.loss, expected.loss)
    assert torch.equal(model(INPUTS["input_ids"], MASK, labels=TARGET).logits, expected.logits)
    received = output.cross_attentions[-1].sum(2)
    assert bool((received <= bounds[:, None] + 1e-5).all())
    assert float((received - bounds[:, None]).masked_fill(MASK[:, None] == 0, -1).max()) > -1e-5  # some bound binds
    looser = model(**INPUTS, labels=TARGET, fertility=9.0).logits
    assert torch.equal(looser, other(**INPUTS, labels=TARGET, fertility=9.0).logits)
    assert not torch.allclose(looser, expected.logits)


MODES = {
    "greedy": {"do_sample": False},
    "no cache": {"do_sample": False, "use_cache": False},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "samples": {"do_sample": True, "num_return_sequences": 2},
    "prompt lookup": {"do_sample": False, "prompt_lookup_num_tokens": 2},
}


@pytest.mark.filterwarnings("ignore:Passing `generation_config`")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_generation_is_that_with_the_bounds_handed_over(name, mode, monkeypatch):
    model, other, bounds = bounded(name)
    inputs = {key: value[:1] for key, value in INPUTS.items()} if mode == "prompt lookup" else INPUTS
    calls = []
    forward = FertilityPredictor.forward
    monkeypatch.setattr(FertilityPredictor, "forward", lambda *args: calls.append(1) or forward(*args))
    settings = {**MODES[mode], "max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True}
    torch.manual_seed(0)
    output = model.generate(**inputs, **settings)
    torch.manual_seed(0)
    expected = other.generate(**inputs, **settings, fertility=bounds[: len(inputs["input_ids"])])
    assert torch.equal(output.sequences, expected.sequences)
    assert all(torch.equal(*pair) for pair in zip(output.logits, expected.logits))
    assert len(calls) == 1


@torch.no_grad()
def test_assistants_work_out_bounds_of_their_own_or_take_those_given():
    model, other, _ = bounded("bart")
    inputs = {key: value[:1] for key, value in INPUTS.items()}
    greedy = model.generate(**inputs, do_sample=False, max_new_tokens=8)
    for assistant in (model, other, tiny_model("bart", seed=3).double()):
        helped = model.generate(**inputs, do_sample=False, max_new_tokens=8, assistant_model=assistant)
        assert torch.equal(helped, greedy)


def weights_of(model):
    return {name: value for name, value in model.state_dict().items() if "sparse_fertility" not in name}


def check_same(twin, model):
    model.eval(), twin.eval()
    with torch.no_grad():
        assert torch.equal(twin(**INPUTS, labels=TARGET).logits, model(**INPUTS, labels=TARGET).logits)
        ids = [m.generate(**INPUTS, do_sample=False, num_beams=2, max_new_tokens=5) for m in (twin, model)]
    assert torch.equal(*ids)
    assert not any(p.requires_grad for name, p in twin.named_parameters() if "sparse_fertility" in name)


@EVERY_WORD
@pytest.mark.parametrize("name", NAMES)
def test_it_is_saved_loaded_copied_and_pickled(name, word, tmp_path):
    made = MADE[word]()
    model = sparsify(tiny_model(name), attn=choice(word), fertility=made, training_fertility=guided(2))
    save_pretrained(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), from_pretrained(tmp_path / "ours")]
    twins += [AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs"), type(tiny_model(name))(model.config)]
    twins[-1].load_state_dict(model.state_dict())
    for twin in twins:
        check_same(twin, model)
        save_pretrained(twin, tmp_path / "again")
        check_same(from_pretrained(tmp_path / "again"), model)
        assert torch.equal(source_of(twin).while_training.table, source_of(model).while_training.table)


def test_a_base_model_and_the_whole_read_each_others_weights(tmp_path):
    model = sparsify(tiny_model("bart"), attn=choice("predicted"), fertility=predictor())
    model.save_pretrained(tmp_path / "whole")
    base, loading = AutoModel.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not [key for key in loading["unexpected_keys"] if "sparse" in key]
    base.save_pretrained(tmp_path / "base")
    whole, loading = BartForConditionalGeneration.from_pretrained(tmp_path / "base", output_loading_info=True)
    assert not [key for key in loading["missing_keys"] if "sparse" in key]
    with torch.no_grad():
        states = model(**INPUTS, decoder_input_ids=TARGET, output_hidden_states=True).decoder_hidden_states[-1]
        assert torch.equal(base(**INPUTS, decoder_input_ids=TARGET).last_hidden_state, states)
    whole.lm_head.weight = model.lm_head.weight
    check_same(whole, model)


@EVERY_WORD
def test_it_is_gone_without_a_trace_when_the_model_is_dense_again(word, tmp_path):
    model, dense = tiny_model("bart"), tiny_model("bart")
    keys = list(model.state_dict())
    sparsify(model, attn=choice(word), fertility=MADE[word]())
    assert any("sparse_fertility" in key for key in model.state_dict())
    unsparsify(model)
    assert list(model.state_dict()) == keys
    assert "hf_sparse_fertility" not in model.config.to_dict()
    with torch.no_grad():
        assert torch.equal(model(**INPUTS, labels=TARGET).logits, dense(**INPUTS, labels=TARGET).logits)
    sparsify(model, attn=choice("given"))
    save_pretrained(model, tmp_path / "model")
    assert "hf_sparse_fertility" not in json.loads((tmp_path / "model" / "config.json").read_text())


@torch.no_grad()
def test_it_follows_the_model_to_other_types_of_number(tmp_path):
    model = sparsify(tiny_model("bart"), attn=choice("predicted"), fertility=predictor())
    model.to(torch.bfloat16)
    assert torch.isfinite(model(**INPUTS, labels=TARGET).logits).all()
    model.save_pretrained(tmp_path / "half")
    half = BartForConditionalGeneration.from_pretrained(tmp_path / "half", dtype=torch.bfloat16)
    assert torch.equal(half(**INPUTS, labels=TARGET).logits, model(**INPUTS, labels=TARGET).logits)
    wide = BartForConditionalGeneration.from_pretrained(tmp_path / "half", dtype=torch.float64)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    torch.testing.assert_close(wide(**INPUTS, labels=TARGET).logits, model.double()(**INPUTS, labels=TARGET).logits)


@EVERY_WORD
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_one_of_another_type_becomes_that_of_the_model_and_comes_back_the_same(word, dtype, tmp_path):
    model = sparsify(tiny_model("bart").to(dtype), attn=choice(word), fertility=MADE[word]())
    assert {tensor.dtype for tensor in source_of(model).state_dict().values()} == {dtype}
    save_pretrained(model, tmp_path / "model")
    twin = from_pretrained(tmp_path / "model")
    assert twin.dtype == dtype
    for other in (dtype, torch.float32):
        twin.to(other), model.to(other)
        assert {tensor.dtype for tensor in source_of(twin).state_dict().values()} == {other}
        with torch.no_grad():
            assert torch.equal(source_of(twin)(**INPUTS), source_of(model)(**INPUTS))
            torch.testing.assert_close(twin(**INPUTS, labels=TARGET).logits, model(**INPUTS, labels=TARGET).logits)
            ids = [one.generate(**INPUTS, do_sample=False, num_beams=2, max_new_tokens=5) for one in (twin, model)]
        assert torch.equal(*ids)


@EVERY_WORD
def test_it_moves_to_other_devices_with_the_model(word, tmp_path):
    model = sparsify(tiny_model("bart"), attn=choice(word), fertility=MADE[word](), training_fertility=guided())
    moved = copy.deepcopy(model).to("meta").train()
    assert {tensor.device.type for tensor in (*moved.parameters(), *moved.buffers())} == {"meta"}
    assert source_of(moved)(INPUTS["input_ids"].to("meta"), MASK.to("meta")).device.type == "meta"
    save_pretrained(model, tmp_path / "model")
    check_same(from_pretrained(tmp_path / "model", device_map="cpu"), model)
    empty = sparsify(tiny_model("bart").to("meta"), attn=choice(word), fertility=MADE[word]())
    assert {tensor.device.type for tensor in source_of(empty).state_dict().values()} == {"meta"}


@EVERY_WORD
def test_it_is_pushed_with_the_model(word, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.utils.hub, "hf_api", lambda: LocalHub(tmp_path))
    monkeypatch.setattr(ModelCard, "load", lambda *args, **kwargs: ModelCard("---\nlicense: mit\n---\nMine."))
    model = sparsify(tiny_model("bart"), attn=choice(word), fertility=MADE[word](), training_fertility=guided(2))
    model.push_to_hub("someone/model")
    pushed = from_pretrained(tmp_path / "someone" / "model")
    check_same(pushed, model)
    assert torch.equal(source_of(pushed).while_training.table, source_of(model).while_training.table)


def test_training_takes_the_guided_bounds_and_testing_the_predicted_ones(tmp_path):
    table = guided()
    model, other = tiny_model("bart"), tiny_model("bart")
    for one in (model, other):
        one.config.dropout = one.config.attention_dropout = one.config.activation_dropout = 0.0
        for module in one.modules():
            module.p = 0.0 if isinstance(module, torch.nn.Dropout) else getattr(module, "p", None)
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
    made = predictor()
    sparsify(model, attn=choice("predicted"), fertility=made, training_fertility=table)
    sparsify(other, attn=choice("given"))
    model.train(), other.train()
    assert torch.equal(
        model(**INPUTS, labels=TARGET).loss, other(**INPUTS, labels=TARGET, fertility=table(**INPUTS)).loss
    )
    model.eval(), other.eval()
    assert torch.equal(
        model(**INPUTS, labels=TARGET).loss, other(**INPUTS, labels=TARGET, fertility=made(**INPUTS)).loss
    )


def test_trainer_needs_no_column_trains_all_else_and_keeps_it_in_checkpoints(tmp_path):
    from tokenizers import Tokenizer, models

    made = predictor()
    model = sparsify(tiny_model("bart"), attn=choice("predicted"), fertility=made, training_fertility=guided())
    before = {name: value.clone() for name, value in made.state_dict().items()}
    rows = Dataset.from_dict(
        {"input_ids": [tokens(1, n)[0].tolist() for n in (4, 6, 5, 6)], "labels": TARGET.tolist() * 2}
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0})), pad_token="[PAD]")
    arguments = SparseTrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
        weight_decay=0.5, learning_rate=0.1, save_steps=2, predict_with_generate=True,
    )  # fmt: skip
    collator = DataCollatorForSeq2Seq(tokenizer, model)
    trainer = SparseSeq2SeqTrainer(model, arguments, collator, train_dataset=rows, processing_class=tokenizer)
    start = weights_of(copy.deepcopy(model))
    trainer.train()
    assert any(not torch.equal(value, start[name]) for name, value in weights_of(model).items())
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    check_same(from_pretrained(tmp_path / "checkpoint-2"), model)
    assert trainer.predict(rows).predictions.shape[0] == 4


def test_an_adapter_takes_it_along(tmp_path):
    peft = pytest.importorskip("peft")
    tiny_model("bart").save_pretrained(tmp_path / "base")
    base = BartForConditionalGeneration.from_pretrained(tmp_path / "base")
    sparsify(base, attn=choice("predicted"), fertility=predictor(), training_fertility=guided())
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"])).eval()
    save_pretrained(model, tmp_path / "adapter")
    again = from_pretrained(tmp_path / "adapter").eval()
    with torch.no_grad():
        assert torch.equal(again(**INPUTS, labels=TARGET).logits, model(**INPUTS, labels=TARGET).logits)


@torch.no_grad()
def test_an_adapter_of_other_bounds_in_its_place_has_them(tmp_path):
    peft = pytest.importorskip("peft")
    tiny_model("bart").save_pretrained(tmp_path / "base")
    for attn, made in ((choice("predicted"), predictor()), (choice(1.5), None)):
        base = BartForConditionalGeneration.from_pretrained(tmp_path / "base")
        sparsify(base, attn=attn, **({"fertility": made} if made else {}))
        model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"])).eval()
        save_pretrained(model, tmp_path / "adapter")
    again = from_pretrained(tmp_path / "adapter").eval()
    assert torch.equal(again(**INPUTS, labels=TARGET).logits, model(**INPUTS, labels=TARGET).logits)


@torch.no_grad()
def test_searches_that_step_by_themselves_work_out_the_bounds_too():
    model = sparsify(tiny_model("bart").double(), attn=choice("predicted"), head="sparsemax", fertility=predictor())
    inputs = {key: value[1:] for key, value in INPUTS.items()}
    settings = {"max_new_tokens": 6, "eos_token_id": list(range(8))}  # strings that end soon
    with pytest.raises(ValueError, match="layers of type SpentLayer between prefixes; pass use_cache=False"):
        exact_search(model, inputs, **settings)
    found = exact_search(model, inputs, use_cache=False, **settings)[0].best
    assert len(found.tokens) > 1
    start = model.config.decoder_start_token_id
    output = model(**inputs, decoder_input_ids=torch.tensor([[start, *found.tokens[:-1]]]))
    p = probabilities(model, output.logits)[0, range(len(found.tokens)), found.tokens]
    assert found.probability == pytest.approx(float(p.prod()), rel=1e-6)

    steps = Continuations(model, inputs, torch.tensor([5]))
    steps.extend(torch.tensor([0, 0]), torch.tensor([6, 7]))
    ids = torch.tensor([[start, 5, 6], [start, 5, 7]])
    twice = {key: value.expand(2, -1) for key, value in inputs.items()}
    expected = probabilities(model, model(**twice, decoder_input_ids=ids).logits[:, -1])
    torch.testing.assert_close(steps.probabilities, expected, atol=1e-6, rtol=0)


REFUSED = [
    (choice("predicted"), {}, ValueError, 'fertility="predicted" needs a FertilityPredictor.* none was given'),
    (choice("guided"), {}, ValueError, 'fertility="guided" needs a GuidedFertility.* none was given'),
    (choice("guided"), {"fertility": predictor()}, ValueError, "needs a GuidedFertility.* was FertilityPredictor"),
    (choice("predicted"), {"fertility": 2.0}, ValueError, "needs a FertilityPredictor.* was float"),
    (choice(2.0), {"fertility": predictor()}, ValueError, "fertility is given, but no attention asks for it"),
    (
        "entmax15",
        {"training_fertility": guided()},
        ValueError,
        "training_fertility is given, but no attention",
    ),
    (
        choice("predicted"),
        {"fertility": predictor(), "training_fertility": torch.ones(3)},
        TypeError,
        "training_fertility must be a FertilityPredictor or a GuidedFertility, was Tensor",
    ),
    (
        {"cross": [choice("predicted")["cross"], choice(2.0)["cross"]]},
        {"fertility": predictor()},
        ValueError,
        "take their fertility from one place, these from 'predicted', 2.0",
    ),
]


@pytest.mark.parametrize(("attn", "settings", "error", "message"), REFUSED, ids=[str(case[3]) for case in REFUSED])
def test_what_cannot_be_honoured_is_refused_and_the_model_stays_dense(attn, settings, error, message):
    model = tiny_model("bart")
    keys = list(model.state_dict())
    with pytest.raises(error, match=message):
        sparsify(model, attn=attn, **settings)
    assert type(model) is type(tiny_model("bart"))
    assert list(model.state_dict()) == keys


def test_classifiers_that_could_not_be_built_again_are_refused():
    class OfMyOwnForTokenClassification(BertForTokenClassification):
        pass

    own = FertilityPredictor(OfMyOwnForTokenClassification(predictor().model.config))
    with pytest.raises(ValueError, match="does not build a OfMyOwnForTokenClassification"):
        sparsify(tiny_model("bart"), attn=choice("predicted"), fertility=own)


def test_models_that_read_no_token_ids_and_records_that_are_gone_are_refused(tmp_path):
    model = tiny_model("bart")
    model.main_input_name = "pixel_values"
    with pytest.raises(ValueError, match=r"computed from token ids, and BartForCond.* takes 'pixel_values'"):
        sparsify(model, attn=choice("guided"), fertility=guided())
    sparsify(tiny_model("bart"), attn=choice("guided"), fertility=guided()).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for record, message in ((None, "has no hf_sparse_fertility"), ({"source": 3}, "not a saved source")):
        path.write_text(json.dumps(config | {"hf_sparse_fertility": record}))
        with pytest.raises(ValueError, match=message):
            from_pretrained(tmp_path)


def test_a_call_without_token_ids_is_refused_and_one_with_bounds_is_not():
    model, other, bounds = bounded("bart")
    states = model.get_encoder()(**INPUTS)
    inputs = {"encoder_outputs": states, "attention_mask": MASK, "decoder_input_ids": TARGET}
    with pytest.raises(ValueError, match='with fertility="predicted": pass input_ids, from which the model computes'):
        model(**inputs)
    with pytest.raises(ValueError, match="pass input_ids"):
        model.generate(encoder_outputs=states, attention_mask=MASK, max_new_tokens=2)
    assert torch.equal(model(**inputs, fertility=bounds).logits, other(**inputs, fertility=bounds).logits)
