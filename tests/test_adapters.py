"""Adapters of sparse models, saved and loaded by PEFT, Transformers and this package, and put into no others."""

import json
import subprocess
import sys
from functools import partial

import pytest
import torch
from peft import (
    AdaptionPromptConfig,
    CartridgeConfig,
    CPTConfig,
    LoKrConfig,
    LoraConfig,
    PeftConfig,
    PeftMixedModel,
    PeftModel,
    PrefixTuningConfig,
    ShadowConfig,
    XLoraConfig,
    compose_cartridge_adapters,
    get_peft_model,
    save_as_lora,
)
from peft.utils.hotswap import hotswap_adapter
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PerceiverConfig,
    PerceiverForMaskedLM,
    Trainer,
)

from hf_sparse import SparseTrainer, from_pretrained, is_sparse, save_pretrained, sparse_config, sparsify, unsparsify
from hf_sparse.model.saved_config import ADAPTER_SETTINGS
from tests.peft_version import needs_fitting_peft
from tests.tiny_models import labelled, tiny_model, tokens
from tests.training.runs import arguments, rows_of_uneven_length

LORA = {"target_modules": ["q_proj"], "init_lora_weights": False}


@pytest.fixture
def base(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(base, attn="entmax15", **options):
    model = sparsify(AutoModelForCausalLM.from_pretrained(base), attn=attn)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA), **options).eval()


@torch.no_grad()
def test_what_peft_saves_comes_back_sparse_and_goes_into_no_other_model(base, tmp_path):
    model = adapted(base)
    model.save_pretrained(tmp_path / "adapter")
    loaded = from_pretrained(tmp_path / "adapter")
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    dense = AutoModelForCausalLM.from_pretrained(base)
    with pytest.raises(ValueError, match="this LlamaForCausalLM is dense: load the adapter with"):
        PeftModel.from_pretrained(dense, tmp_path / "adapter")
    other = get_peft_model(sparsify(dense, attn="sparsemax"), LoraConfig(**LORA))
    with pytest.raises(ValueError, match=r"was trained in a model with .*entmax15.*, and this .* has .*sparsemax"):
        other.load_adapter(tmp_path / "adapter", "second")
    again = PeftModel.from_pretrained(
        sparsify(AutoModelForCausalLM.from_pretrained(base), "entmax15"), tmp_path / "adapter"
    )
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)


@pytest.mark.parametrize("trainer_class", [SparseTrainer, Trainer])
def test_a_run_of_an_adapter_is_not_resumed_under_other_maps(trainer_class, base, tmp_path):
    def trainer(model):
        args = arguments(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
        return trainer_class(model, args, train_dataset=rows_of_uneven_length())

    trainer(adapted(base).train()).train()
    assert (tmp_path / "checkpoint-1" / ADAPTER_SETTINGS).exists()
    with pytest.raises(ValueError, match=r"was trained with .*entmax15.*is_trainable=True for an adapter"):
        trainer(adapted(base, "sparsemax")).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    trainer(from_pretrained(tmp_path / "checkpoint-1", is_trainable=True)).train()


WITHOUT = """
import sys
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM
base, adapter = sys.argv[1:]
dense = AutoModelForCausalLM.from_pretrained(base)
for load in (
    lambda: AutoModelForCausalLM.from_pretrained(adapter),
    lambda: AutoPeftModelForCausalLM.from_pretrained(adapter),
    lambda: PeftModel.from_pretrained(dense, adapter),
):
    try:
        load()
    except Exception as error:
        print(repr(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("config", [LoraConfig(**LORA), PrefixTuningConfig(num_virtual_tokens=2)], ids=["r", "no r"])
def test_nothing_opens_an_adapter_without_this_package(config, base, tmp_path):
    config.task_type = "CAUSAL_LM"
    path = tmp_path / "adapter"
    get_peft_model(sparsify(AutoModelForCausalLM.from_pretrained(base), head="entmax15"), config).save_pretrained(path)
    run = subprocess.run([sys.executable, "-c", WITHOUT, base, path], capture_output=True, text=True)
    refusals = run.stdout.splitlines()
    assert len(refusals) == 3, run.stderr
    assert all("import hf_sparse before you load it" in refusal for refusal in refusals)
    assert PeftConfig.from_pretrained(path).peft_type == config.peft_type
    assert getattr(PeftConfig.from_pretrained(path), "r", None) == getattr(config, "r", None)
    assert not isinstance(json.loads((path / "adapter_config.json").read_text()).get("r"), int)  # servers read it
    assert is_sparse(from_pretrained(path))


ONCE_IMPORTED = """
import sys
import hf_sparse
from importlib.util import find_spec
assert find_spec("peft") and "peft" not in sys.modules
from peft import AutoPeftModelForCausalLM
print(hf_sparse.is_sparse(AutoPeftModelForCausalLM.from_pretrained(sys.argv[1])))
"""


@pytest.mark.slow
def test_an_adapter_opens_whichever_package_is_imported_first(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(base)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **LORA))
    model.save_pretrained(adapter)
    for code in (ONCE_IMPORTED, "import peft\n" + ONCE_IMPORTED.replace('and "peft" not in sys.modules', "")):
        run = subprocess.run([sys.executable, "-c", code, adapter], capture_output=True, text=True)
        assert run.stdout.splitlines()[-1:] == ["True"], run.stderr


@torch.no_grad()
def test_an_adapter_is_not_swapped_into_another_model(base, tmp_path):
    adapted(base).save_pretrained(tmp_path / "adapter")
    dense = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**LORA))
    with pytest.raises(ValueError, match="this PeftModel is dense: load the adapter with"):
        hotswap_adapter(dense, str(tmp_path / "adapter"), "default")
    same = get_peft_model(sparsify(AutoModelForCausalLM.from_pretrained(base), attn="entmax15"), LoraConfig(**LORA))
    hotswap_adapter(same.eval(), str(tmp_path / "adapter"), "default")
    assert torch.equal(same(tokens()).logits, adapted_logits(tmp_path / "adapter"))


def adapted_logits(path):
    return from_pretrained(path)(tokens()).logits


@torch.no_grad()
def test_a_mixed_model_takes_an_adapter_of_its_maps(base, tmp_path):
    adapted(base).save_pretrained(tmp_path / "adapter")
    load = partial(PeftMixedModel.from_pretrained, model_id=tmp_path / "adapter")
    mixed = load(sparsify(AutoModelForCausalLM.from_pretrained(base), attn="entmax15"))
    assert torch.equal(mixed(tokens()).logits, adapted_logits(tmp_path / "adapter"))
    with pytest.raises(ValueError, match="this LlamaForCausalLM is dense"):
        load(AutoModelForCausalLM.from_pretrained(base))


def test_an_adapter_with_a_loss_of_its_own_is_refused_under_a_sparse_head():
    tokens_of_task = {"cpt_token_ids": [3, 4], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 4]}
    for maps in ({"head": "entmax15"}, {"attn": "entmax15"}):
        config = CPTConfig(task_type="CAUSAL_LM", **tokens_of_task)
        model = get_peft_model(sparsify(tiny_model("llama"), **maps), config)
        ones = torch.ones_like(tokens())
        inputs = {"input_ids": tokens(), "attention_mask": ones, "input_type_mask": 4 * ones}
        assert model(**inputs, labels=None).logits.isfinite().any()
        if "head" in maps:
            with pytest.raises(ValueError, match=r"CPT computes softmax's loss .* PeftModelForCausalLM has entmax15"):
                model(**inputs, labels=tokens())
        else:
            assert model(**inputs, labels=tokens()).loss.isfinite()


def test_a_model_saved_beside_the_adapter_of_a_dense_one_leaves_that_alone(base, tmp_path):
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**LORA)).save_pretrained(tmp_path)
    adapter = (tmp_path / "adapter_config.json").read_text()
    sparsify(AutoModelForCausalLM.from_pretrained(base), attn="entmax15").save_pretrained(tmp_path)
    assert (tmp_path / "adapter_config.json").read_text() == adapter
    assert not (tmp_path / ADAPTER_SETTINGS).exists()
    assert "This is an adapter" not in (tmp_path / "README.md").read_text()


def test_a_whole_model_is_not_saved_where_an_adapter_would_be_put_into_it_again(base, tmp_path):
    model = adapted(base)
    save_pretrained(model, tmp_path / "out")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with pytest.raises(ValueError, match=r"out holds an adapter.*another folder, or remove adapter_config\.json"):
        save_pretrained(model.merge_and_unload(), tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("is_dense", [True, False])
@torch.no_grad()
def test_an_adapter_beside_its_base_comes_back_or_is_refused(is_dense, base, tmp_path):
    if not is_dense:
        sparsify(AutoModelForCausalLM.from_pretrained(base), attn="entmax15").save_pretrained(base)
    model = get_peft_model(
        sparsify(AutoModelForCausalLM.from_pretrained(base), attn="entmax15") if is_dense else from_pretrained(base),
        LoraConfig(task_type="CAUSAL_LM", **LORA),
    )
    model.save_pretrained(base)
    if is_dense:
        with pytest.raises(ValueError, match=r"holds a dense model beside an adapter.*a folder of its own"):
            from_pretrained(base)
    else:
        assert torch.equal(from_pretrained(base)(tokens()).logits, model(tokens()).logits)


@pytest.mark.parametrize("saved_fused", [True, False])
def test_how_a_loss_is_computed_does_not_tell_models_apart(saved_fused, tmp_path):
    def model(fused):
        return sparsify(tiny_model("llama"), head="entmax15", fused_loss=fused)

    args = arguments(tmp_path, save_strategy="steps", save_steps=1)
    own = get_peft_model(model(saved_fused), LoraConfig(task_type="CAUSAL_LM", **LORA))
    SparseTrainer(own, args, train_dataset=rows_of_uneven_length()).train()
    other = PeftModel.from_pretrained(model(not saved_fused), tmp_path / "checkpoint-1", is_trainable=True)
    assert sparse_config(other).fused_loss is not saved_fused
    args = arguments(tmp_path, max_steps=2)
    SparseTrainer(other, args, train_dataset=rows_of_uneven_length()).train(resume_from_checkpoint=True)


def test_an_adapter_under_its_own_name_has_its_settings_beside_it(base, tmp_path):
    save_pretrained(adapted(base, adapter_name="mine"), tmp_path / "adapter")
    loaded = from_pretrained(tmp_path / "adapter" / "mine", adapter_name="other")
    assert list(loaded.peft_config) == ["other"]
    assert sparse_config(loaded) == sparse_config(adapted(base))
    with pytest.raises(ValueError, match="this LlamaForCausalLM is dense"):
        AutoModelForCausalLM.from_pretrained(base).load_adapter(tmp_path / "adapter" / "mine")


def test_an_adapter_may_lie_in_a_folder_of_a_repository(base, tmp_path):
    save_pretrained(adapted(base), tmp_path / "repository" / "part")
    assert is_sparse(from_pretrained(tmp_path / "repository", subfolder="part"))


@pytest.mark.parametrize("of_base", [None, "v1"])
def test_the_base_of_an_adapter_has_a_revision_of_its_own(of_base, base, tmp_path):
    revisions = []

    class Noted(AutoModelForCausalLM):
        @classmethod
        def from_pretrained(cls, *args, **kwargs):
            revisions.append(kwargs.get("revision"))
            return AutoModelForCausalLM.from_pretrained(*args, **kwargs)

    model = adapted(base)
    model.peft_config["default"].revision = of_base
    save_pretrained(model, tmp_path)
    assert is_sparse(from_pretrained(tmp_path, auto_class=Noted, revision="v2"))
    assert revisions == [of_base]


@torch.no_grad()
def test_an_adapter_comes_back_in_the_class_and_with_the_labels_it_was_trained_with(base, tmp_path):
    names = {0: "bad", 1: "middling", 2: "good"}
    model = AutoModelForSequenceClassification.from_pretrained(base, id2label=names, label2id={})
    model = get_peft_model(sparsify(model, attn="entmax15"), LoraConfig(task_type="SEQ_CLS", **LORA)).eval()
    save_pretrained(model, tmp_path / "adapter")
    loaded = from_pretrained(tmp_path / "adapter")
    assert type(loaded.get_base_model()) is type(model.get_base_model())
    assert loaded.config.id2label == names
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    assert from_pretrained(tmp_path / "adapter", num_labels=3).config.id2label == {i: f"LABEL_{i}" for i in range(3)}
    others = {0: "no", 1: "maybe", 2: "yes"}
    assert from_pretrained(tmp_path / "adapter", id2label=others).config.id2label == others


def test_an_adapter_saved_before_classes_were_noted_comes_back_as_its_base(base, tmp_path):
    save_pretrained(adapted(base), tmp_path)
    block = json.loads((tmp_path / ADAPTER_SETTINGS).read_text())
    del block["architecture"], block["id2label"]
    (tmp_path / ADAPTER_SETTINGS).write_text(json.dumps(block))
    assert type(from_pretrained(tmp_path).get_base_model()).__name__ == "LlamaForCausalLM"


def test_an_adapter_of_a_model_from_nowhere_says_so(tmp_path):
    save_pretrained(get_peft_model(sparsify(tiny_model("llama"), attn="entmax15"), LoraConfig(**LORA)), tmp_path)
    with pytest.raises(ValueError, match=r"does not say where its base is.*base_model_name_or_path"):
        from_pretrained(tmp_path)


@torch.no_grad()
def test_adaption_prompts_call_the_sparse_forward_and_after_undoing_the_dense_one():
    model = get_peft_model(
        tiny_model("llama"), AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=3, adapter_layers=1)
    )
    run = labelled(model.get_base_model())
    dense = model(**run)
    sparsify(model, head="sparsemax")
    assert float(model(**run).loss) != float(dense.loss)
    assert bool((model(tokens()).logits.softmax(-1) == 0).any())
    unsparsify(model)
    assert torch.equal(model(**run).loss, dense.loss)
    assert torch.equal(model(**run).logits, dense.logits)


@pytest.mark.parametrize("base_is_sparse", [True, False])
@torch.no_grad()
def test_an_adapter_comes_back_around_a_sparse_base(base_is_sparse, tmp_path):
    base = tiny_model("llama")
    if base_is_sparse:
        sparsify(base, attn="entmax15", head="sparsemax")
    base.save_pretrained(tmp_path / "base")
    loader = from_pretrained if base_is_sparse else AutoModelForCausalLM.from_pretrained
    base = loader(tmp_path / "base")
    if not base_is_sparse:
        sparsify(base, attn="entmax15", head="sparsemax")
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    save_pretrained(model, tmp_path / "adapter")
    loaded = from_pretrained(tmp_path / "adapter")
    assert isinstance(loaded, PeftModel)
    assert sparse_config(loaded) == sparse_config(model)
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


def test_an_adapter_whose_maps_are_not_known_or_do_not_fit_is_refused(tmp_path):
    sparsify(tiny_model("llama"), head="sparsemax").save_pretrained(tmp_path / "base")
    model = get_peft_model(from_pretrained(tmp_path / "base"), LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "adapter")
    settings = (tmp_path / "adapter" / "hf_sparse.json").read_text()
    (tmp_path / "adapter" / "hf_sparse.json").unlink()  # as PEFT saves it where this package was not imported
    with pytest.raises(ValueError, match=r"holds an adapter without hf_sparse\.json"):
        from_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "hf_sparse.json").write_text(settings)
    sparsify(tiny_model("llama"), head="entmax15").save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"was trained on a base with .*sparsemax.* has .*entmax15"):
        from_pretrained(tmp_path / "adapter")


@needs_fitting_peft
@torch.no_grad()
def test_an_adapter_added_to_a_sparse_model_is_not_loaded_into_another(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "base")
    model = sparsify(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), attn="entmax15", head="sparsemax")
    model.add_adapter(LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    expected = model(tokens()).logits
    with pytest.raises(ValueError, match=r"trained in a model with .*sparsemax.*ForCausalLM is dense: load"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has \{.*'head': None"):
        sparsify(tiny_model("llama"), attn="entmax15").load_adapter(str(tmp_path / "adapter"))
    again = sparsify(tiny_model("llama"), attn="entmax15", head="sparsemax")
    again.load_adapter(str(tmp_path / "adapter"))
    assert torch.equal(again(tokens()).logits, expected)
    assert torch.equal(from_pretrained(tmp_path / "adapter")(tokens()).logits, expected)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    base.add_adapter(LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    base.save_pretrained(tmp_path / "dense")
    AutoModelForCausalLM.from_pretrained(tmp_path / "dense")


@needs_fitting_peft
def test_a_model_with_an_adapter_inside_is_saved_where_its_adapter_was(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "base")
    model = sparsify(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), attn="entmax15")
    model.add_adapter(LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    for _ in range(2):
        save_pretrained(model, tmp_path / "adapter")
    assert torch.equal(from_pretrained(tmp_path / "adapter")(tokens()).logits, model(tokens()).logits)


def several(attn, *names):
    model = sparsify(tiny_model("llama"), attn=attn)
    adapter = LoraConfig(task_type="CAUSAL_LM", **LORA)
    model = get_peft_model(model, adapter, names[0])
    for name in names[1:]:
        model.add_adapter(name, adapter)
    return model


@pytest.mark.parametrize(("args", "kwargs"), [((), {"selected_adapters": ["two"]}), ((True, ["two"]), {})])
def test_settings_are_written_beside_the_adapters_that_are_saved_and_no_others(args, kwargs, tmp_path):
    several("entmax15", "one", "two").save_pretrained(tmp_path)
    before = (tmp_path / "one" / ADAPTER_SETTINGS).read_text()
    several("sparsemax", "one", "two").save_pretrained(tmp_path, *args, **kwargs)
    assert (tmp_path / "one" / ADAPTER_SETTINGS).read_text() == before
    assert "sparsemax" in (tmp_path / "two" / ADAPTER_SETTINGS).read_text()


def adapter_of_a_dense_model(base):
    return get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **LORA))


def saved_by_peft(base, path):
    adapter_of_a_dense_model(base).save_pretrained(path)


def saved_by_transformers(base, path):
    model = AutoModelForCausalLM.from_pretrained(base)
    model.add_adapter(LoraConfig(**LORA))
    model.save_pretrained(path)


def saved_as_lora(base, path):
    config = LoKrConfig(target_modules=["q_proj"], r=4, init_weights=False)
    save_as_lora(path, get_peft_model(AutoModelForCausalLM.from_pretrained(base), config), rank=4)


@pytest.mark.parametrize(
    "save", [saved_by_peft, pytest.param(saved_by_transformers, marks=needs_fitting_peft), saved_as_lora]
)
def test_an_adapter_of_a_dense_model_in_the_place_of_a_sparse_ones_is_dense(save, base, tmp_path):
    adapted(base).save_pretrained(tmp_path / "adapter")
    save(base, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / ADAPTER_SETTINGS).exists()
    dense = AutoModelForCausalLM.from_pretrained(base)
    assert not is_sparse(PeftModel.from_pretrained(dense, tmp_path / "adapter"))


def test_an_adapter_of_a_dense_model_leaves_the_settings_of_those_that_it_does_not_replace(base, tmp_path):
    several("entmax15", "one", "two").save_pretrained(tmp_path)
    model = adapter_of_a_dense_model(base)
    for name in ("one", "two"):
        model.add_adapter(name, LoraConfig(task_type="CAUSAL_LM", **LORA))
    model.save_pretrained(tmp_path, selected_adapters=["one"])
    model.save_pretrained(tmp_path, selected_adapters=["two"], is_main_process=False)
    assert not (tmp_path / "one" / ADAPTER_SETTINGS).exists()
    assert (tmp_path / "two" / ADAPTER_SETTINGS).exists()


@pytest.mark.parametrize(("args", "kwargs"), [((), {"is_main_process": False}), ((True, None, "auto", False), {})])
def test_a_process_that_is_not_the_main_one_leaves_the_settings_of_an_adapter(args, kwargs, tmp_path):
    several("entmax15", "default").save_pretrained(tmp_path)
    before = (tmp_path / ADAPTER_SETTINGS).read_text()
    several("sparsemax", "default").save_pretrained(tmp_path, *args, **kwargs)
    assert (tmp_path / ADAPTER_SETTINGS).read_text() == before


def test_an_adapter_around_a_model_that_was_given_an_example_comes_back(tmp_path):
    config = PerceiverConfig(vocab_size=23, d_model=16, d_latents=16, num_latents=4, num_self_attends_per_block=1)
    PerceiverForMaskedLM(config).save_pretrained(tmp_path / "base")
    base, inputs = PerceiverForMaskedLM.from_pretrained(tmp_path / "base"), {"inputs": tokens()}
    sparsify(base, attn="entmax15", example=inputs)
    model = get_peft_model(base, LoraConfig(target_modules=["query"], init_lora_weights=False)).eval()
    model.save_pretrained(tmp_path / "adapter")
    assert torch.equal(from_pretrained(tmp_path / "adapter")(**inputs).logits, model(**inputs).logits)


def test_an_adapter_that_becomes_lora_keeps_its_maps(base, tmp_path):
    model = sparsify(AutoModelForCausalLM.from_pretrained(base), attn="entmax15")
    adapter = get_peft_model(model, LoKrConfig(target_modules=["q_proj"], r=4, init_weights=False))
    save_as_lora(tmp_path / "lora", adapter, rank=4)
    assert sparse_config(from_pretrained(tmp_path / "lora")) == sparse_config(model)
    with pytest.raises(ValueError, match="this LlamaForCausalLM is dense: load the adapter with"):
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "lora")


def test_a_mixture_takes_experts_of_its_own_maps_alone(base, tmp_path):
    adapted(base).save_pretrained(tmp_path / "expert")

    def mixture(model):
        model.config.use_cache = False
        config = XLoraConfig(
            task_type="CAUSAL_LM", hidden_size=32, xlora_depth=1, adapters={"0": str(tmp_path / "expert")}
        )
        return get_peft_model(model, config)

    with pytest.raises(ValueError, match="this LlamaForCausalLM is dense: load the adapter with"):
        mixture(AutoModelForCausalLM.from_pretrained(base))
    assert is_sparse(mixture(sparsify(AutoModelForCausalLM.from_pretrained(base), attn="entmax15")))


def test_cartridges_of_one_model_are_composed_with_its_maps(base, tmp_path):
    def cartridge(name, attn):
        model = AutoModelForCausalLM.from_pretrained(base)
        config = CartridgeConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        get_peft_model(sparsify(model, attn=attn) if attn else model, config).save_pretrained(tmp_path / name)
        return tmp_path / name

    one, two = cartridge("one", "entmax15"), cartridge("two", "entmax15")
    compose_cartridge_adapters([one, two], output_path=tmp_path / "both")
    assert sparse_config(from_pretrained(tmp_path / "both")).map_names == ["entmax15"]
    assert json.loads((tmp_path / "both" / "adapter_config.json").read_text())["peft_type"] != "CARTRIDGE"
    compose_cartridge_adapters([one, two], output_path=one)
    assert (one / ADAPTER_SETTINGS).read_text() == (tmp_path / "both" / ADAPTER_SETTINGS).read_text()
    with pytest.raises(
        ValueError, match=r"trained under maps that differ, .*entmax15.*, softmax: compose those of one"
    ):
        compose_cartridge_adapters([one, cartridge("dense", None)], output_path=tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()
    compose_cartridge_adapters([cartridge("dense", None), cartridge("other", None)], output_path=tmp_path / "both")
    assert not (tmp_path / "both" / ADAPTER_SETTINGS).exists()


def test_a_network_beside_the_model_is_refused():
    config = ShadowConfig(task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match=r"Shadow copies layers of this LlamaForCausalLM .*: use another adapter"):
        get_peft_model(sparsify(tiny_model("llama"), head="entmax15"), config)
    with pytest.raises(ValueError, match=r"Shadow copies layers of this LlamaForCausalLM .*: use another adapter"):
        sparsify(get_peft_model(tiny_model("llama"), config), attn="entmax15")
