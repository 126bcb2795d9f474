"""A sparse checkpoint is refused by all that opens it without this package; this package reads it as before."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.config import PeftConfigMixin
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    EncoderDecoderConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    Trainer,
    TrainingArguments,
    VideoPrismConfig,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_sparse import from_pretrained, is_sparse, save_pretrained, sparse_config, sparsify
from hf_sparse.hooks import install, uninstall
from hf_sparse.model.seal import SENTENCE, seal_adapter, sealed_field
from tests.tiny_models import tiny_model, tokens

RECORD = {"hf_sparse": SENTENCE, "value": 1}
WAYS = [
    "AutoModelForCausalLM.from_pretrained(path)",
    "AutoModelForCausalLM.from_pretrained(path, attn_implementation='sdpa')",
    "AutoModelForCausalLM.from_pretrained(path, attn_implementation='eager', vocab_size=23)",
    "AutoModel.from_pretrained(path, attn_implementation='sdpa')",
    "LlamaForCausalLM.from_pretrained(path, attn_implementation='sdpa')",
    "LlamaForCausalLM.from_pretrained(path, attn_implementation='eager', experts_implementation='eager')",
    "AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), attn_implementation='sdpa')",
    "LlamaForCausalLM(LlamaConfig.from_json_file(path + '/config.json'))",
    "LlamaForCausalLM(LlamaConfig(**{**json.load(open(path + '/config.json')), 'attn_implementation': 'sdpa'}))",
    "pipeline('text-generation', path, tokenizer=object(), model_kwargs={'attn_implementation': 'sdpa'})",
]
WITHOUT_THE_PACKAGE = """
import json
import sys
from transformers import (
    AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, pipeline
)
path, *ways = sys.argv[1:]
answers = []
for way in ways:
    try:
        exec(way)
        answers.append("loaded")
    except Exception as error:
        answers.append(str(error) + str(error.__cause__))
assert "hf_sparse" not in sys.modules
print(json.dumps(answers))
"""


def answers_without_the_package(path, ways):
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(path), *ways]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"attn": "entmax15"}, {"head": "entmax15"}], ids=["attn", "head"])
def test_without_the_package_no_way_of_loading_makes_a_sparse_checkpoint_dense(settings, tmp_path):
    model = sparsify(tiny_model("llama"), **settings)
    model.save_pretrained(tmp_path / "by the model")
    save_pretrained(model, tmp_path / "by the package")
    for folder in ("by the model", "by the package"):
        for way, answer in zip(WAYS, answers_without_the_package(tmp_path / folder, WAYS), strict=True):
            assert SENTENCE in answer, way


def test_a_configuration_inside_a_file_of_another_package_is_refused_without_this_one(tmp_path):
    """As GLiNER writes it: that of its encoder, read from the encoder's folder, as a part of its own JSON."""
    files = []
    for settings in ({"attn": "entmax15"}, {"head": "entmax15"}):
        model = sparsify(tiny_model("llama"), **settings)
        model.save_pretrained(tmp_path / "model")
        for config in (AutoConfig.from_pretrained(tmp_path / "model"), from_pretrained(tmp_path / "model").config):
            files.append(tmp_path / f"others-{len(files)}.json")
            files[-1].write_text(json.dumps({"encoder": config.to_dict()}))
            built = LlamaForCausalLM(LlamaConfig(**json.loads(files[-1].read_text())["encoder"]))
            assert sparse_config(built) == sparse_config(model)
    ways = [f"LlamaForCausalLM(LlamaConfig(**json.load(open(path + '/{file.name}'))['encoder']))" for file in files]
    for answer in answers_without_the_package(tmp_path, ways):
        assert "hf_sparse" in answer


def test_without_the_package_an_adapter_around_a_sparse_base_is_refused(tmp_path):
    sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(tmp_path / "base")
    model = get_peft_model(from_pretrained(tmp_path / "base"), LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "adapter")
    ways = ["__import__('peft').AutoPeftModelForCausalLM.from_pretrained(path, attn_implementation='sdpa')"]
    assert SENTENCE in answers_without_the_package(tmp_path / "adapter", ways)[0]


@pytest.mark.parametrize("has_tokens", [True, False], ids=["of text", "of images"])
def test_without_the_package_a_trainer_does_not_go_on_from_a_sparse_run(has_tokens, tmp_path):
    """It reads the configuration of a checkpoint with the base class, and then copies the weights alone."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    if has_tokens:
        model, row = tiny_model("llama"), {"input_ids": tokens()[0], "labels": tokens()[0]}
    else:
        model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes))
        row = {"pixel_values": torch.zeros(3, 8, 8), "labels": 0}
    model.save_pretrained(tmp_path / "dense")
    args = TrainingArguments(tmp_path, max_steps=1, save_steps=1, report_to=[], disable_tqdm=True, use_cpu=True)
    Trainer(sparsify(model, attn="entmax15"), args, train_dataset=[row]).train()
    resume = (
        "transformers = __import__('transformers'); "
        f"model = transformers.{type(model).__name__}.from_pretrained(path + '/dense'); "
        "args = transformers.TrainingArguments(path, report_to=[], use_cpu=True); "
        "transformers.Trainer(model, args, train_dataset=[{}]).train(resume_from_checkpoint=path + '/checkpoint-1')"
    )
    assert SENTENCE in answers_without_the_package(tmp_path, [resume])[0]


@torch.no_grad()
def test_a_checkpoint_that_was_made_dense_again_loads_without_the_package(tmp_path):
    from hf_sparse import unsparsify

    unsparsify(sparsify(tiny_model("llama"), attn="entmax15")).save_pretrained(tmp_path)
    assert SENTENCE not in (tmp_path / "config.json").read_text()
    assert answers_without_the_package(tmp_path, WAYS[:1]) == ["loaded"]


def test_without_the_hooks_a_sparse_checkpoint_is_refused(tmp_path):
    sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(tmp_path)
    try:
        uninstall()
        with pytest.raises(Exception, match=SENTENCE):
            AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    finally:
        install()
    assert is_sparse(AutoModelForCausalLM.from_pretrained(tmp_path))


@torch.no_grad()
def test_checkpoints_whose_type_was_not_sealed_yet_load(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="sparsemax")
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "model_type": "llama"}))
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(tokens()).logits, model(tokens()).logits)


def test_only_files_are_sealed_and_configurations_go_round_as_before(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="sparsemax")
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["vocab_size"] == {"hf_sparse": SENTENCE, "value": 23}
    assert saved["model_type"] == f"llama: {SENTENCE}"
    assert saved["dtype"] == f"float32: {SENTENCE}"
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.vocab_size == model.config.vocab_size == 23
    assert config.hf_sparse == model.config.hf_sparse
    for again in (
        copy.deepcopy(config),
        LlamaConfig.from_dict(config.to_dict()),
        LlamaConfig(**config.to_dict()),
        LlamaConfig.from_json_file(tmp_path / "config.json"),
    ):
        assert SENTENCE not in again.to_json_string()
        assert again.to_diff_dict() == config.to_diff_dict()
    config.save_pretrained(tmp_path / "alone")
    assert json.loads((tmp_path / "alone" / "config.json").read_text())["vocab_size"] == RECORD | {"value": 23}


def test_every_type_of_model_has_a_field_that_refuses_the_seal():
    refused = 0
    for model_type in CONFIG_MAPPING:
        cls = CONFIG_MAPPING[model_type]
        name = sealed_field(cls, RECORD)
        assert name == "id2label" or name not in PreTrainedConfig.__validators__  # one that all readers need
        if model_type in ("timm_wrapper", "gemma3n_vision", "nougat"):  # read with timm, or not without their parts
            continue
        with pytest.raises(Exception, match=f"{SENTENCE}|'hf_sparse'"):
            cls.from_dict({name: RECORD, "model_type": model_type})
        refused += 1
    assert refused > 400


def test_a_class_that_checks_no_types_has_its_labels_sealed(tmp_path):
    config = VideoPrismConfig()
    vars(config)["hf_sparse"] = {"version": 1, "attn": {"name": "entmax15"}, "head": None, "fused_loss": False}
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["id2label"]["hf_sparse"] == SENTENCE
    assert VideoPrismConfig.from_pretrained(tmp_path).id2label == config.id2label
    read = PreTrainedConfig.get_config_dict(tmp_path)[0]
    assert read["hf_sparse"] == config.hf_sparse
    assert "id2label" not in read
    try:
        uninstall()
        with pytest.raises(ValueError, match="'hf_sparse'"):
            VideoPrismConfig.from_pretrained(tmp_path)
    finally:
        install()


@torch.no_grad()
def test_weights_and_settings_come_back_through_a_sealed_file(tmp_path):
    model = sparsify(tiny_model("bart"), attn="entmax15", head="sparsemax")
    model.save_pretrained(tmp_path)
    inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(seed=2)}
    assert torch.equal(from_pretrained(tmp_path)(**inputs).logits, model(**inputs).logits)


def test_a_sparse_part_of_a_configuration_that_is_dense_otherwise_is_sealed_too(tmp_path):
    part = sparsify(tiny_model("bert"), head="entmax15").config
    config = EncoderDecoderConfig.from_encoder_decoder_configs(tiny_model("bert").config, part)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert [SENTENCE in json.dumps(saved[name]) for name in ("encoder", "decoder")] == [False, True]
    assert EncoderDecoderConfig.from_pretrained(tmp_path).decoder.hf_sparse == part.hf_sparse


def test_a_type_that_is_not_told_is_read_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": None, "vocab_size": 23}))
    assert PreTrainedConfig.get_config_dict(tmp_path)[0] == {"model_type": None, "vocab_size": 23}


def test_an_adapter_that_is_sealed_twice_is_sealed_once(tmp_path):
    file = tmp_path / "adapter_config.json"
    for settings in ({"peft_type": "LORA", "r": 8}, {"peft_type": "PROMPT_TUNING"}):
        file.write_text(json.dumps(settings))
        seal_adapter(file)
        once = file.read_text()
        assert once.count(SENTENCE) == len(settings)
        seal_adapter(file)
        assert file.read_text() == once
        assert PeftConfigMixin.from_json_file(file) == settings
