"""A checkpoint saved sparse comes back sparse, or says why not."""

import json
import sys
from dataclasses import replace
from importlib import import_module

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from huggingface_hub.errors import LocalEntryNotFoundError
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BarkSemanticConfig,
    BarkSemanticModel,
    BigBirdConfig,
    BigBirdForMaskedLM,
    GenerationConfig,
    IBertConfig,
    IBertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5EncoderModel,
    pipeline,
)

from hf_sparse import (
    from_pretrained,
    is_sparse,
    save_pretrained,
    sparse_config,
    sparsify,
    unsparsify,
)
from hf_sparse.model.find import sparse_state
from hf_sparse.model.sparse_model import SparseModel
from tests.local_hub import LocalHub
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import (
    ARCHITECTURES,
    CAUSAL,
    SEQ2SEQS,
    attentions,
    labelled,
    tiny_model,
    tokens,
)
from tests.word_tokenizer import word_tokenizer

SETTINGS = [
    {"attn": {"name": "entmax", "alpha": 1.4}},
    {"head": {"name": "alpha_relu", "tau": 0.3}},
    {"attn": "entmax15", "head": "sparsemax"},
]


def auto_class(name):
    if name in CAUSAL:
        return AutoModelForCausalLM
    return AutoModelForSeq2SeqLM if name in SEQ2SEQS else AutoModelForMaskedLM


@pytest.mark.parametrize("settings", SETTINGS, ids=["attn", "head", "both"])
@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_every_way_of_loading_brings_back_maps_and_bit_equal_logits(name, settings, tmp_path):
    model = sparsify(tiny_model(name), **settings)
    inputs = labelled(model)
    expected = model(**inputs)
    model.save_pretrained(tmp_path / "first")
    loaded = from_pretrained(tmp_path / "first")
    loaded.save_pretrained(tmp_path / "second")  # and once more from what was loaded
    for again in (
        loaded,
        from_pretrained(tmp_path / "second"),
        auto_class(name).from_pretrained(tmp_path / "second"),
        model._dense_class.from_pretrained(tmp_path / "second"),
    ):
        assert type(again).__name__ == type(model).__name__
        assert not again.training
        assert sparse_config(again) == sparse_config(model)
        output = again(**inputs)
        assert torch.equal(output.logits, expected.logits)
        assert torch.equal(output.loss, expected.loss)
        # The attention of every model inside is sparse by itself too, under the settings of the whole.
        parts = [part for part in again.modules() if isinstance(part, PreTrainedModel) and part is not again]
        if "attn" in settings:
            assert all(sparse_config(part) == replace(sparse_config(again), head=None) for part in parts)
        else:
            assert not any(isinstance(part, SparseModel) for part in parts)


@torch.no_grad()
def test_a_base_model_keeps_sparse_attention_and_the_settings_of_the_whole(tmp_path):
    model = sparsify(tiny_model("bart"), attn="sparsemax", head="entmax15")
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path)
    assert sparse_config(base).head is None
    assert is_sparse(base)
    assert (attentions(base, input_ids=tokens(), decoder_input_ids=tokens())[0] == 0).any()
    assert base.config.hf_sparse == model.config.hf_sparse


@torch.no_grad()
def test_loading_in_bfloat16_and_from_the_configuration_alone(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert (attentions(half, input_ids=tokens())[0] == 0).any()
    fresh = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert sparse_config(fresh) == sparse_config(model)
    direct = LlamaForCausalLM(AutoConfig.from_pretrained(tmp_path))
    assert sparse_config(direct) == sparse_config(model)


@torch.no_grad()
def test_a_loaded_model_can_be_made_dense_again(tmp_path):
    dense = tiny_model("qwen3")
    expected = dense(tokens()).logits
    sparsify(dense, attn="entmax15").save_pretrained(tmp_path)
    loaded = unsparsify(from_pretrained(tmp_path))
    assert not is_sparse(loaded)
    torch.testing.assert_close(loaded(tokens()).logits, expected)
    loaded.save_pretrained(tmp_path / "dense")
    assert "hf_sparse" not in (tmp_path / "dense" / "config.json").read_text()
    assert not is_sparse(AutoModelForCausalLM.from_pretrained(tmp_path / "dense"))


@pytest.mark.parametrize("maps", [{"attn": "entmax15"}, {"head": "entmax15"}], ids=["attention", "head"])
def test_a_dense_configuration_for_a_sparse_checkpoint_is_refused(maps, tmp_path):
    sparse, dense = tmp_path / "sparse", tmp_path / "dense"
    sparsify(tiny_model("llama"), **maps).save_pretrained(sparse)
    tiny_model("llama").save_pretrained(dense)
    elsewhere = AutoConfig.from_pretrained(dense)
    for load in (AutoModelForCausalLM.from_pretrained, LlamaForCausalLM.from_pretrained):
        for given in (elsewhere, tiny_model("llama").config):
            with pytest.raises(ValueError, match=r"is a sparse checkpoint .* so that the model would be dense"):
                load(sparse, config=given)
        own = AutoConfig.from_pretrained(sparse, hidden_dropout_prob=0.5)
        assert is_sparse(load(sparse, config=own))
        assert not is_sparse(load(dense, config=elsewhere))
        assert not is_sparse(load(dense, config=tiny_model("llama").config))
    with pytest.raises(ValueError, match="is a sparse checkpoint"):
        LlamaForCausalLM.from_pretrained(str(sparse), config=str(dense), output_loading_info=True)
    loaded = unsparsify(LlamaForCausalLM.from_pretrained(pretrained_model_name_or_path=sparse))
    assert not is_sparse(LlamaForCausalLM.from_pretrained(dense, config=loaded.config))
    for load in (AutoModelForCausalLM.from_pretrained, LlamaForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=r"so that the model would be dense"):
            load(sparse, config=loaded.config)  # which was read from there, and is dense again


def test_a_configuration_from_before_its_folder_was_sparse_is_refused(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(str(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path), config=before)
    sparsify(model, attn="entmax15").save_pretrained(tmp_path)
    for load in (AutoModelForCausalLM.from_pretrained, LlamaForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=r"is a sparse checkpoint .* so that the model would be dense"):
            load(str(tmp_path), config=before)


def test_asking_for_dense_attention_of_a_sparse_checkpoint_is_refused(tmp_path):
    sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"dense with attn_implementation='sdpa': .*, or with 'hf_sparse'"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert is_sparse(AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="hf_sparse"))


def test_who_asks_for_eager_attention_to_see_weights_is_told_how(tmp_path):
    """Transformers refuses ``output_attentions=True`` for a whole model, and says to choose eager attention."""
    model, how = sparsify(tiny_model("llama"), attn="entmax15"), r"call model\(\.\.\., output_attentions=True\)"
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=how):
        AutoModelForCausalLM.from_pretrained(tmp_path, output_attentions=True, attn_implementation="eager")
    with pytest.raises(ValueError, match=how):
        model.set_attn_implementation("eager")
    assert len(model(tokens(), output_attentions=True).attentions) == 2


@pytest.mark.parametrize(("attn", "head"), [("entmax15", "entmax15"), ("entmax15", None), (None, "entmax15")])
@pytest.mark.parametrize("name", ["llama", "gemma2", "bart", "bloom"])
@torch.no_grad()
def test_no_choice_of_attention_is_what_was_saved(name, attn, head, tmp_path):
    """Scripts pass ``attn_implementation=None`` on where their user said nothing."""
    model = sparsify(tiny_inline_model(name) if name == "bloom" else tiny_model(name), attn=attn, head=head)
    model.save_pretrained(tmp_path)
    expected = model(tokens()).logits
    own = model._dense_class
    config = AutoConfig.from_pretrained(tmp_path, attn_implementation=None)
    for loaded in (
        own.from_pretrained(tmp_path, attn_implementation=None),
        own.from_pretrained(tmp_path, config=config),
        own.from_pretrained(tmp_path, config=AutoConfig.from_pretrained(tmp_path), attn_implementation=None),
    ):
        assert sparse_config(loaded) == sparse_config(model)
        assert torch.equal(loaded(tokens()).logits, expected)
    assert sparse_config(own._from_config(config, attn_implementation=None)) == sparse_config(model)


def test_a_sparse_head_leaves_the_choice_of_attention_free(tmp_path):
    sparsify(tiny_model("llama"), head="entmax15").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


TAMPERED = [
    (lambda block: block.update(version=99), "saved by hf_sparse format 99, this release reads format 1"),
    (lambda block: block.update(colour="red"), "unknown fields in the saved hf_sparse configuration: 'colour'"),
    (lambda block: block.pop("version"), "not a saved hf_sparse configuration"),
    (lambda block: block.update(head={"name": "nomax"}), "does not fit hf_sparse .*unknown sparse map 'nomax'"),
    (lambda block: block.update(attn={"name": "nomax"}), "map 'nomax'.*import the code that registers it"),
    (lambda block: block.update(head={"name": "entmax", "alpha": -3}), "alpha must be a number from 1 to 64, was -3"),
    (lambda block: block.update(head={"name": "alpha_relu", "tau": "auto"}), "leaves 'tau' open"),
    (lambda block: (block.clear(), block.update(version=1)), "nothing to make sparse"),
]


@pytest.mark.parametrize(("tamper", "message"), TAMPERED, ids=[message for _, message in TAMPERED])
def test_a_tampered_block_is_refused_clearly(tamper, message, tmp_path):
    sparsify(tiny_model("llama"), attn="entmax15", head="entmax15").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    tamper(config["hf_sparse"])
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


def test_dense_and_unknown_checkpoints_are_refused_by_our_loader(tmp_path):
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is not a sparse checkpoint"):
        from_pretrained(tmp_path)
    sparsify(model, attn="entmax15").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "architectures": ["MyOwnModel"]}))
    with pytest.raises(ValueError, match=r"architectures was \['MyOwnModel'\]\); name one there, or pass auto_class"):
        from_pretrained(tmp_path)
    assert is_sparse(from_pretrained(tmp_path, auto_class=AutoModelForCausalLM))


@pytest.mark.parametrize("names", [["AutoModel"], ["logging"], [], None, [3], "LlamaForCausalLM", ["pipeline"]])
def test_architectures_that_are_no_class_are_refused(names, tmp_path):
    sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": names}))
    with pytest.raises(ValueError, match="names no class of Transformers"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("given", ["LlamaForCausalLM", 3, AutoModelForCausalLM.from_pretrained, dict])
def test_an_auto_class_that_is_no_class_is_refused(given, tmp_path):
    sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="auto_class must be a class with from_pretrained, as transformers"):
        from_pretrained(tmp_path, auto_class=given)


LISTED = [{"decoder": ["entmax15", "sparsemax"]}, {"decoder": ["entmax15", None]}]


@pytest.mark.parametrize("attn", LISTED, ids=["all", "some"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_list_of_maps_is_not_loaded_into_a_model_with_another_number_of_layers(attn, layers, tmp_path):
    sparsify(tiny_model("llama"), attn=attn).save_pretrained(tmp_path)
    for load in (from_pretrained, AutoModelForCausalLM.from_pretrained, AutoModel.from_pretrained):
        with pytest.raises(ValueError, match=rf"this model: attn\['decoder'\] lists 2 layers, .* has {layers}"):
            load(tmp_path, num_hidden_layers=layers)
        assert is_sparse(load(tmp_path))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_list_of_maps_is_not_loaded_into_an_encoder_decoder_with_another_number_of_layers(kind, tmp_path):
    sparsify(tiny_model("bart"), attn={kind: ["entmax15", None]}).save_pretrained(tmp_path)
    for load in (from_pretrained, AutoModel.from_pretrained):
        for layers in (1, 3):
            with pytest.raises(ValueError, match=rf"this model: attn\['{kind}'\] lists 2 layers, .* has {layers} of"):
                load(tmp_path, **{f"{kind}_layers": layers})
        assert is_sparse(load(tmp_path))


def test_a_kind_of_attention_that_the_model_lacks_is_not_loaded(tmp_path):
    sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["hf_sparse"]["attn"] = {"cross": {"name": "entmax15"}}
    path.write_text(json.dumps(config))
    for load in (from_pretrained, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match="LlamaForCausalLM has no cross attention; it has: 'decoder'"):
            load(tmp_path)


SMALL = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
BLOCKS = "BigBirdBlockSparseAttention at .* replaces its attention modules"
SWITCHES = {
    "big bird": (BigBirdConfig, BigBirdForMaskedLM, "attention_type", ("original_full", "block_sparse"), BLOCKS),
    "i-bert": (IBertConfig, IBertForMaskedLM, "quant_mode", (False, True), "IBertSelfAttention at .* in integers"),
}


@pytest.mark.parametrize(("config", "model_class", "switch", "values", "message"), SWITCHES.values(), ids=SWITCHES)
def test_a_switch_to_attention_that_would_be_dense_is_refused(config, model_class, switch, values, message, tmp_path):
    before, after = ({switch: value} for value in values)
    model = sparsify(model_class(config(**SMALL, **before)), attn="entmax15", head="entmax15")
    model.save_pretrained(tmp_path / "both")
    for load in (from_pretrained, AutoModel.from_pretrained, AutoModelForMaskedLM.from_pretrained):
        with pytest.raises(ValueError, match=f"this checkpoint is not for this model: {message}"):
            load(tmp_path / "both", **after)
        assert is_sparse(load(tmp_path / "both"))
    sparsify(unsparsify(model), head="entmax15").save_pretrained(tmp_path / "head")
    assert is_sparse(from_pretrained(tmp_path / "head", **after))


def test_an_adapter_on_sparse_attention_is_not_loaded_onto_a_base_that_is_switched(tmp_path):
    BigBirdForMaskedLM(BigBirdConfig(**SMALL, attention_type="original_full")).save_pretrained(tmp_path / "base")
    model = sparsify(AutoModelForMaskedLM.from_pretrained(tmp_path / "base"), attn="entmax15")
    get_peft_model(model, LoraConfig(target_modules=["query"])).save_pretrained(tmp_path / "adapter")
    assert is_sparse(from_pretrained(tmp_path / "adapter"))
    with pytest.raises(ValueError, match=f"the adapter .* is not for .*: {BLOCKS}"):
        from_pretrained(tmp_path / "adapter", attention_type="block_sparse")


def test_the_parts_of_an_encoder_decoder_are_loaded_without_the_kinds_they_lack(tmp_path):
    model = sparsify(tiny_model("t5"), attn={"encoder": ["entmax15", None], "cross": "sparsemax"}, head="entmax15")
    model.save_pretrained(tmp_path)
    encoder = T5EncoderModel.from_pretrained(tmp_path)
    assert is_sparse(encoder)
    assert torch.equal(encoder(tokens()).last_hidden_state, model.encoder(tokens()).last_hidden_state)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_part_of_an_encoder_decoder_keeps_the_lists_of_the_whole_when_it_is_saved(kind, tmp_path):
    model = sparsify(tiny_model("t5"), attn={kind: ["entmax15", None], "encoder": ["sparsemax", "entmax15"]})
    model.save_pretrained(tmp_path / "whole")
    encoder = T5EncoderModel.from_pretrained(tmp_path / "whole")
    encoder.save_pretrained(tmp_path / "part")
    again = T5EncoderModel.from_pretrained(tmp_path / "part")
    assert sparse_config(again) == sparse_config(encoder)
    assert torch.equal(again(tokens()).last_hidden_state, model.encoder(tokens()).last_hidden_state)


ON_DISK = ("model.layers.1", "lm_head")
DIVIDED = dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb"), "cpu")
PLACES = {
    "auto": {"device_map": "auto"},
    "whole": {"device_map": {"": "cpu"}},
    "divided": {"device_map": DIVIDED | dict.fromkeys(ON_DISK, "disk")},
    "float64": {"device_map": "cpu", "dtype": torch.float64},
}
LOADERS = {
    "ours": from_pretrained,
    "auto class": AutoModelForCausalLM.from_pretrained,
    "explicit class": LlamaForCausalLM.from_pretrained,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("loader", LOADERS)
@torch.no_grad()
def test_a_checkpoint_that_is_dispatched_while_it_loads_is_as_sparse(loader, place, tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    save_pretrained(model, tmp_path / "model", max_shard_size="20KB")
    loaded = LOADERS[loader](tmp_path / "model", offload_folder=tmp_path / "disk", **PLACES[place])
    assert sparse_config(loaded) == sparse_config(model)
    expected = model.to(loaded.dtype)(tokens()).logits
    torch.testing.assert_close(loaded(tokens()).logits, expected)
    assert (loaded(tokens()).logits.exp() == 0).any()


@torch.no_grad()
def test_a_pipeline_dispatches_a_folder_and_draws_from_the_support(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    generator = pipeline("text-generation", str(tmp_path), device_map="auto")
    options = {"max_new_tokens": 4, "do_sample": False}
    (found,) = generator("w5 w6", return_tensors=True, **options)
    assert found["generated_token_ids"] == model.generate(torch.tensor([[5, 6]]), **options)[0].tolist()


def test_sharded_files_load(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    save_pretrained(model, tmp_path / "model", max_shard_size="20KB")
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()
    assert torch.equal(from_pretrained(tmp_path / "model")(tokens()).logits, model(tokens()).logits)


@torch.no_grad()
def test_a_pushed_model_comes_back_and_is_tagged(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.utils.hub, "hf_api", lambda: LocalHub(tmp_path))
    monkeypatch.setattr(ModelCard, "load", lambda *args, **kwargs: ModelCard("---\nlicense: apache-2.0\n---\nMine."))
    model = tiny_model("bart")
    model.add_model_tags("mine")
    sparsify(model, attn={"cross": "sparsemax"}, head={"name": "alpha_relu", "tau": 0.2})
    model.push_to_hub("someone/model")
    pushed = from_pretrained(tmp_path / "someone" / "model")
    assert torch.equal(pushed(**labelled(model)).logits, model(**labelled(model)).logits)
    tags = ModelCard((tmp_path / "someone" / "model" / "README.md").read_text()).data.tags
    assert tags == ["mine", "hf_sparse", "alpha_relu", "sparsemax"]
    assert unsparsify(model).model_tags == ["mine"]


def test_a_pushed_card_has_the_figures_that_were_given(tmp_path, monkeypatch):
    for module in (transformers.utils.hub, transformers.modeling_utils):
        monkeypatch.setattr(module, "hf_api", lambda: LocalHub(tmp_path))
    monkeypatch.setattr(ModelCard, "load", lambda *args, **kwargs: ModelCard("Mine."))
    model = sparsify(tiny_model("llama"), head="entmax15")
    sparse_state(model).metrics = before = {"head_support": 9.0}
    save_pretrained(model, tmp_path / "m", metrics={"head_support": 7.0}, push_to_hub=True, repo_id="someone/m")
    for card in (tmp_path / "m" / "README.md", tmp_path / "someone" / "m" / "README.md"):
        assert "classes of nonzero probability, mean a token: 7\n" in card.read_text(encoding="utf-8")
    assert sparse_state(model).metrics is before


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own_llama"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@torch.no_grad()
def test_a_class_with_its_own_code_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "own_llama.py").write_text(CODE, encoding="utf-8")
    own = import_module("own_llama")
    own.OwnConfig.register_for_auto_class()
    own.OwnForCausalLM.register_for_auto_class("AutoModelForCausalLM")
    settings = tiny_model("llama").config.to_diff_dict() | {"model_type": "own_llama"}
    model = sparsify(own.OwnForCausalLM(own.OwnConfig(**settings)).eval(), attn="entmax15", head="entmax15")
    save_pretrained(model, tmp_path / "model")
    for loading, options in (
        (AutoModelForCausalLM, {"trust_remote_code": True}),
        (AutoModelForCausalLM, {"trust_remote_code": True, "code_revision": "main"}),
        (own.OwnForCausalLM, {"trust_remote_code": True, "code_revision": "main"}),
    ):
        loaded = from_pretrained(tmp_path / "model", auto_class=loading, **options)
        assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


class UnknownConfig(LlamaConfig):
    model_type = "unknown_llama"


class UnknownForCausalLM(LlamaForCausalLM):
    config_class = UnknownConfig


@torch.no_grad()
def test_types_that_auto_classes_do_not_know_come_back(tmp_path):
    sizes = {"input_vocab_size": 50, "output_vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
    bark = sparsify(BarkSemanticModel(BarkSemanticConfig(**sizes, block_size=64)).eval(), attn="entmax15")
    save_pretrained(bark, tmp_path / "bark")
    for given in (None, BarkSemanticModel):
        loaded = from_pretrained(tmp_path / "bark", auto_class=given)
        assert torch.equal(loaded(tokens()).logits, bark(tokens()).logits)
    settings = tiny_model("llama").config.to_diff_dict() | {"model_type": "unknown_llama"}
    own = sparsify(UnknownForCausalLM(UnknownConfig(**settings)).eval(), attn="entmax15", head="sparsemax")
    save_pretrained(own, tmp_path / "own")
    loaded = from_pretrained(tmp_path / "own", auto_class=UnknownForCausalLM)
    assert torch.equal(loaded(tokens()).logits, own(tokens()).logits)
    with pytest.raises(ValueError, match=r"names no class of Transformers .* pass auto_class"):
        from_pretrained(tmp_path / "own")
    with pytest.raises(ValueError, match="Auto classes know no models of type 'unknown_llama': pass the model's own"):
        from_pretrained(tmp_path / "own", auto_class=AutoModelForCausalLM)


def test_loading_info_comes_beside_the_model(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15")
    save_pretrained(model, tmp_path / "model")
    loaded, info = from_pretrained(tmp_path / "model", output_loading_info=True)
    assert is_sparse(loaded)
    assert info["missing_keys"] == set()
    adapted = get_peft_model(from_pretrained(tmp_path / "model"), LoraConfig(task_type="CAUSAL_LM"))
    save_pretrained(adapted, tmp_path / "adapter")
    loaded, info = from_pretrained(tmp_path / "adapter", output_loading_info=True)
    assert isinstance(loaded, PeftModel)
    assert is_sparse(loaded)
    assert info["missing_keys"] == set()


def test_what_forbids_the_network_reaches_every_file(monkeypatch):
    asked = {}

    def offline(repo_id, filename, **options):
        asked[filename] = options["local_files_only"], options["force_download"]
        raise LocalEntryNotFoundError("not here")

    monkeypatch.setattr(transformers.utils.hub, "hf_hub_download", offline)
    with pytest.raises(OSError, match="couldn't find them in the cached files"):
        from_pretrained("someone/nothing", local_files_only=True, force_download=True)
    assert asked == {"adapter_config.json": (True, True), "config.json": (True, True)}


def test_generation_settings_travel_with_the_model(tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    model.generation_config = GenerationConfig(max_new_tokens=3, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert loaded.generate(tokens()).shape == (2, 10)


@torch.no_grad()
def test_the_class_of_a_sparse_model_builds_what_a_configuration_asks_for(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="sparsemax")
    plain = type(model.config)(**{**model.config.to_diff_dict(), "hf_sparse": None, "attn_implementation": None})
    model.save_pretrained(tmp_path)
    built, dense = type(model)(model.config), type(model)(plain)
    assert sparse_config(built) == sparse_config(model)
    assert not is_sparse(dense)
    assert torch.equal(type(model).from_pretrained(tmp_path)(tokens()).logits, model(tokens()).logits)
    dense.load_state_dict(model.state_dict())
    assert torch.equal(dense(tokens()).logits, unsparsify(model)(tokens()).logits)


@pytest.mark.parametrize("is_dense", [False, True])
def test_a_class_derived_from_that_of_a_sparse_model_is_refused(is_dense):
    model = sparsify(tiny_model("llama"), attn="entmax15")
    config = tiny_model("llama").config if is_dense else model.config
    mine = type("Mine", (type(model),), {})
    with pytest.raises(ValueError, match=r"Mine is derived from .* sparse LlamaForCausalLM.* from the dense"):
        mine(config)
    other = type("Mine", (type(unsparsify(model)),), {})
    assert type(other(model.config)) is other
