"""Models whose base is quantized by torchao or bitsandbytes, made sparse after loading.

GGUF, which Transformers turns into numbers as it loads, is how the real SmolLM2 of these tests comes. GPTQ and AWQ,
whose packages are not installed here, replace linear layers too, and leave the head alone by default.
"""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig
from torchao.quantization.granularity import PerGroup
from transformers import (
    BertForMaskedLM,
    BitsAndBytesConfig,
    LlamaForCausalLM,
    T5ForConditionalGeneration,
    TorchAoConfig,
)

import hf_sparse
from hf_sparse import SparseTrainer, SparseTrainingArguments, sparsify, unsparsify
from hf_sparse.attention import observe
from hf_sparse.functional import entmax15
from tests.tiny_models import tiny_model, tokens

VOCABULARY = 64
WIDTH = {"hidden_size": 64, "intermediate_size": 64}  # bitsandbytes packs blocks of 64
CLASSES = {"llama": LlamaForCausalLM, "bert": BertForMaskedLM, "t5": T5ForConditionalGeneration}
INT4 = {"weight_dtype": torch.int4, "granularity": PerGroup(32)}
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32}
# Without the head, as each of them does by itself, and with it.
QUANTIZED = {
    "torchao int8": lambda **skip: TorchAoConfig(Int8WeightOnlyConfig(), **skip),
    "torchao int8 activations": lambda **skip: TorchAoConfig(Int8DynamicActivationInt8WeightConfig(), **skip),
    "torchao int4": lambda **skip: TorchAoConfig(IntxWeightOnlyConfig(**INT4), **skip),
    "bitsandbytes int8": lambda **skip: BitsAndBytesConfig(load_in_8bit=True, **skip),
    "bitsandbytes int4": lambda **skip: BitsAndBytesConfig(**FOUR_BITS, **skip),
}
HEAD_TOO = {
    name: {"modules_to_not_convert": []} if "torchao" in name else {"llm_int8_skip_modules": ["no module"]}
    for name in QUANTIZED
}


def load(family, folder, how, **skip):
    widths = {"d_model": 64, "d_ff": 64, "d_kv": 16} if family == "t5" else WIDTH
    tiny_model(family, VOCABULARY, **widths).save_pretrained(folder)
    config = QUANTIZED[how](**skip)
    loaded = CLASSES[family].from_pretrained(folder, quantization_config=config, device_map="cpu", dtype=torch.float32)
    return loaded.eval()


def inputs_of(model):
    ids = tokens()
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("how", QUANTIZED)
@torch.no_grad()
def test_a_quantized_model_is_sparse_and_comes_back_dense_to_the_bit(tmp_path, family, how):
    model = load(family, tmp_path, how)
    inputs = inputs_of(model)
    dense = model(**inputs).logits
    sparsify(model, head="entmax15")
    torch.testing.assert_close(model(**inputs).logits.softmax(-1), entmax15(dense))
    unsparsify(model)
    sparsify(model, attn="entmax15", head="entmax15")
    with observe(model) as counts:
        loss = model(**inputs, labels=inputs["input_ids"]).loss
    assert loss.isfinite()
    assert all(0 < count.nonzero < count.keys for count in counts.values())
    unsparsify(model)
    assert torch.equal(model(**inputs).logits, dense)


@pytest.mark.parametrize("how", QUANTIZED)
@torch.no_grad()
def test_a_quantized_head_has_the_loss_and_the_distribution_of_its_map(tmp_path, how):
    model = load("llama", tmp_path, how, **HEAD_TOO[how])
    ids = tokens()
    dense = model(ids).logits
    sparsify(model, head="entmax15")
    torch.testing.assert_close(model(ids).logits.softmax(-1), entmax15(dense))
    loss = hf_sparse.losses.entmax15_loss(dense[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model(ids, labels=ids).loss, loss)
    scores = hf_sparse.score_sequences(model, {"input_ids": ids[:, :3]}, ids)
    steps = entmax15(dense.double()).gather(-1, ids[:, 1:, None]).log()[:, 2:, 0].sum(-1)
    torch.testing.assert_close(scores.normalized, steps)
    drawn = model.generate(ids, do_sample=True, max_new_tokens=4, output_logits=True, return_dict_in_generate=True)
    assert drawn.sequences.shape == (2, 11)


@pytest.mark.parametrize("how", QUANTIZED)
def test_settings_are_learned_in_numbers_and_not_in_codes(tmp_path, how):
    ids = tokens()
    with torch.no_grad():
        fixed = sparsify(load("llama", tmp_path, how), attn={"name": "entmax", "alpha": 1.5})(ids).logits
    model = sparsify(load("llama", tmp_path, how), attn={"name": "entmax", "alpha": {"learned": 1.5}})
    torch.testing.assert_close(model(ids).logits, fixed, atol=1e-4, rtol=1e-4)
    if "activations" not in how and "int4" not in how:  # whose own products pass no gradient on a CPU
        model(ids, labels=ids).loss.backward()
        assert bool((model.model.layers[0].self_attn.sparse_alpha.value.grad != 0).any())
    covered = sparsify(load("t5", tmp_path, how), attn={"cross": {"name": "entmax15", "coverage": "vector"}})
    assert covered(**inputs_of(covered), labels=ids).loss.isfinite()


@pytest.mark.parametrize("how", QUANTIZED)
def test_what_reads_the_weight_of_a_quantized_head_is_refused_by_name(tmp_path, how):
    model = load("llama", tmp_path, how, **HEAD_TOO[how])
    with pytest.raises(ValueError, match=r"is quantized, and a fused loss multiplies .* pass fused_loss=False"):
        sparsify(model, head="entmax15", fused_loss=True)
    with pytest.raises(ValueError, match=r"is quantized, so that tau cannot be estimated .* give tau a number"):
        sparsify(model, head="alpha_relu")
    sparsify(model, head={"name": "entmax", "alpha": 2.0, "temperature": "auto"})
    assert hf_sparse.sparse_config(model).head.temperature == pytest.approx(VOCABULARY**0.5)  # however packed
    with pytest.raises(ValueError, match="takes a head that is not quantized"):
        hf_sparse.set_head_impl(model, "screened")


@pytest.mark.parametrize("how", [name for name in QUANTIZED if name != "bitsandbytes int4"])
@torch.no_grad()
def test_a_saved_quantized_model_comes_back_sparse(tmp_path, how):
    """Four bits of bitsandbytes are left out: on a CPU saving changes its dense models, too."""
    model = sparsify(load("llama", tmp_path, how), attn="entmax15", head="entmax15")
    model.save_pretrained(tmp_path / "saved")
    expected = model(tokens()).logits
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "saved", device_map="cpu")
    assert hf_sparse.is_sparse(loaded)
    torch.testing.assert_close(loaded(tokens()).logits, expected)


@pytest.mark.parametrize("how", ["torchao int8", "bitsandbytes int8"])
def test_adapters_on_a_quantized_base_are_trained_with_the_loss_of_the_map(tmp_path, how):
    """The others give no gradient on a CPU, sparse or dense."""
    model = sparsify(load("llama", tmp_path, how), attn="entmax15", head="entmax15")
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "up_proj"], r=2))
    rows = Dataset.from_list([{"input_ids": row, "labels": row} for row in tokens().tolist()])
    with torch.no_grad():
        before = adapted(tokens(), labels=tokens()).loss
    arguments = SparseTrainingArguments(
        str(tmp_path / "run"), max_steps=10, learning_rate=0.05, report_to=[], use_cpu=True, disable_tqdm=True
    )
    SparseTrainer(adapted, arguments, train_dataset=rows).train()
    with torch.no_grad():
        assert adapted.eval()(tokens(), labels=tokens()).loss < before


def test_a_quantized_model_can_be_calibrated(tmp_path):
    model = sparsify(load("llama", tmp_path, "torchao int8"), attn="entmax15", head="entmax15")
    report = hf_sparse.calibrate(model, [{"input_ids": tokens(), "labels": tokens()}], edges=0.5)
    assert report is not None
