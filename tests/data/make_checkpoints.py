"""Makes ``tests/data/checkpoints``: tiny checkpoints as hf_sparse saved them at commit 345959c, before its redesign.

They are not made anew: later releases have to read these files. Beside what the package wrote itself each folder has
``made.json``, which says what it holds and who reads it, and ``expected.safetensors`` with inputs and outputs.

It ran in a checkout of that commit, without threads, first without the C++ kernel and then with it, which adds outputs
as the kernel rounds them where those differ::

    HF_SPARSE_CPP=0 OMP_NUM_THREADS=1 python -m tests.data.make_checkpoints FOLDER
    OMP_NUM_THREADS=1 python -m tests.data.make_checkpoints FOLDER --cpp
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
    CLIPConfig,
    CLIPModel,
    EncoderDecoderModel,
)

import hf_sparse
from hf_sparse import (
    AnnealingCallback,
    FertilityPredictor,
    GuidedFertility,
    SparseTrainer,
    SparseTrainingArguments,
    WordAligner,
    save_pretrained,
    sparsify,
)
from tests.tiny_models import EOS, spread, tiny_model, tokens

COMMIT = "345959c"
OUT = Path(__file__).with_name("checkpoints")
DECODER = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "max_position_embeddings": 32}
SEQ2SEQ = {
    "d_model": 16,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 32,
}
SIZES = {
    "llama": {**DECODER, "num_key_value_heads": 1},
    "bert": DECODER,
    "gpt2": {"n_embd": 16, "n_head": 2, "n_positions": 32},
    "t5": {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    "bart": SEQ2SEQ,
    "marian": SEQ2SEQ,
}
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
TEXT = {"input_ids": tokens().masked_fill(MASK == 0, 0), "attention_mask": MASK, "labels": tokens(seed=2)}
IMAGE = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
OUTPUTS = ("logits", "loss", "last_hidden_state", "logits_per_image", "image_embeds", "text_embeds")


def tiny(name, **changes):
    return tiny_model(name, **{**SIZES[name], **changes})


def tagger():
    torch.manual_seed(3)
    sizes = {**DECODER, "hidden_size": 8, "intermediate_size": 8}
    config = BertConfig(vocab_size=23, num_hidden_layers=1, num_labels=4, initializer_range=0.5, **sizes)
    return FertilityPredictor(BertForTokenClassification(config), constant=0.3)


def guided():
    return GuidedFertility(torch.randint(1, 4, (23,), generator=torch.Generator().manual_seed(1)))


def moved(model):
    """The model with what it learns of its maps away from where that starts."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".sparse_" in name and not name.split(".sparse_")[1].startswith("fertility"):
                value.add_(torch.randn(value.shape, generator=generator))
    return model


def keep(name, model, settings, loaders, inputs=TEXT, save=save_pretrained):
    """Save a model as ``name``, with what the loaders' models make of ``inputs``.

    ``loaders`` are the Auto classes and model classes that read the folder beside ``hf_sparse.from_pretrained``.
    """
    save(model.eval(), OUT / name)
    finish(name, settings, dict.fromkeys(["hf_sparse", *loaders], inputs))


def finish(name, settings, loaders, **more):
    """Write ``made.json``, and ``expected.safetensors`` with one set of inputs and outputs for every other set."""
    folder = OUT / name
    if name != "llama-saved-by-package":
        (folder / "README.md").unlink(missing_ok=True)
    expected, found, reads = {}, [], {}
    for loader, inputs in loaders.items():
        result = {**outputs(loader, folder, inputs), "inputs": inputs}
        same = (number for number, other in enumerate(found) if equal(result, other))
        reads[loader] = str(next(same, len(found)))
        if reads[loader] == str(len(found)):
            found.append(result)
            expected |= {f"{reads[loader]}.{key}": v for key, v in result.items() if key != "inputs"}
            expected |= {f"{reads[loader]}.inputs.{key}": v.clone() for key, v in inputs.items()}
    save_file(expected, folder / "expected.safetensors")
    note(folder, settings=settings, loaders=reads, **more)


def note(folder, **facts):
    facts = {"commit": COMMIT, "torch": torch.__version__, "transformers": transformers.__version__, **facts}
    (folder / "made.json").write_text(json.dumps(facts, indent=1) + "\n")


def equal(one, other):
    flat = [{**result, **result["inputs"]} for result in (one, other)]
    for result in flat:
        del result["inputs"]
    return flat[0].keys() == flat[1].keys() and all(torch.equal(v, flat[1][k]) for k, v in flat[0].items())


@torch.no_grad()
def outputs(loader, folder, inputs):
    load = hf_sparse.from_pretrained if loader == "hf_sparse" else getattr(transformers, loader).from_pretrained
    adapter = folder / "adapter_config.json"
    text = adapter.read_text() if adapter.exists() else None
    if text:  # the base is the folder of that name beside this one
        settings = json.loads(text)
        adapter.write_text(
            json.dumps({**settings, "base_model_name_or_path": str(OUT / settings["base_model_name_or_path"])})
        )
    try:
        output = load(folder).eval()(**inputs)
    finally:
        if text:
            adapter.write_text(text)
    return {
        key: output[key].clone(memory_format=torch.contiguous_format) for key in OUTPUTS if output.get(key) is not None
    }


def keep_adapter(name, base, model, save, loaders=()):
    save(model.eval(), OUT / name)
    path = OUT / name / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": base}, indent=2) + "\n")
    finish(name, {"base": base}, dict.fromkeys(["hf_sparse", *loaders], TEXT))


def keep_models():
    both = {"attn": "entmax15", "head": "alpha_relu"}
    causal = ["AutoModelForCausalLM", "LlamaForCausalLM"]
    keep("llama-saved-by-model", sparsify(tiny("llama"), **both), both, causal, save=own_save)
    figures = {"eval_attention_zero_rate": 0.5}
    by_package = lambda model, folder: save_pretrained(model, folder, figures=figures)  # noqa: E731
    keep("llama-saved-by-package", sparsify(tiny("llama"), **both), both, causal, save=by_package)

    seq2seq = "AutoModelForSeq2SeqLM"
    cross = [{"name": "entmax", "alpha": 1.3}, None]
    kinds = {
        "attn": {"encoder": "sparsemax", "cross": cross},
        "head": {"name": "entmax15", "temperature": 2.0},
    }
    base_inputs = {key: TEXT[key] for key in ("input_ids", "attention_mask")} | {"decoder_input_ids": TEXT["labels"]}
    model = sparsify(tiny("bart"), **kinds)
    save_pretrained(model, OUT / "bart-kinds-and-layers")
    classes = dict.fromkeys(["hf_sparse", seq2seq, "BartForConditionalGeneration"], TEXT)
    finish("bart-kinds-and-layers", kinds, {**classes, "AutoModel": base_inputs})

    learned = {"attn": {"name": "entmax", "alpha": "learned"}, "head": {"name": "entmax", "alpha": 1.7}}
    keep("t5-learned-alpha", moved(sparsify(tiny("t5"), **learned)), learned, [seq2seq])
    starts = {
        "attn": {"name": "entmax", "alpha": {"learned": [1.2, 1.8]}, "temperature": "learned"},
        "head": "sparsemax",
    }
    keep("bert-learned-by-head", moved(sparsify(tiny("bert"), **starts)), starts, ["AutoModelForMaskedLM"])

    bounded = {"attn": {"cross": [{"name": "csparsemax", "fertility": 1.5, "exhaustion": 0.2}, "csoftmax"]}}
    keep("bart-fertility-number", sparsify(tiny("bart"), **bounded), bounded, [seq2seq])
    covered = {"attn": {"cross": {"name": "entmax", "alpha": "learned", "coverage": "vector"}}}
    keep("marian-coverage-vectors", moved(sparsify(tiny("marian"), **covered)), covered, [seq2seq])
    predicted = {"attn": {"cross": {"name": "csparsemax", "fertility": "predicted"}}}
    model = sparsify(tiny("bart"), **predicted, fertility=tagger(), training_fertility=guided())
    keep("bart-fertility-predicted", model, predicted, [seq2seq])
    told = {"attn": {"cross": {"name": "csoftmax", "fertility": "guided", "sink": False}}}
    keep("t5-fertility-guided", sparsify(tiny("t5"), **told, fertility=guided()), told, [seq2seq])

    head = {"name": "alpha_relu", "alpha": 1.4, "centered": True, "temperature": 0.7}
    scaled = {
        "attn": {"name": "entmax", "alpha": 1.4, "delta": 0.5, "beta": 0.3, "gamma": -0.8, "temperature": [0.8, 1.2]},
        "head": head,
        "fused_loss": True,
    }
    keep("llama-length-scale-fused-loss", sparsify(tiny("llama"), **scaled), scaled, ["AutoModelForCausalLM"])
    grows = {"attn": {"name": "softmax", "delta": "learned", "beta": {"learned": 0.3}, "gamma": "learned"}}
    keep("gpt2-length-scale-learned", moved(sparsify(tiny("gpt2"), **grows)), grows, ["AutoModelForCausalLM"])

    every_map = [
        "softmax", "sparsemax", "entmax", "entmax15", {"name": "sparsegen_lin", "lam": 0.2},
        {"name": "sparsegen_exp", "lam": -0.5}, {"name": "sparsegen_sq", "lam": 0.1}, "spherical_softmax",
        {"name": "sparsehourglass", "q": 2.0}, {"name": "csoftmax", "fertility": 3.0, "shared": True},
        {"name": "csparsemax", "detach": True, "sink_score": 0.5},
    ]  # fmt: skip
    every = {"attn": {"decoder": every_map}, "head": "softmax"}
    keep(
        "gpt2-every-map",
        sparsify(tiny("gpt2", n_embd=8, n_layer=len(every_map)), **every),
        every,
        ["AutoModelForCausalLM"],
    )
    inline = {"attn": "sparsemax", "head": "entmax15"}
    bloom = small_bloom()
    keep("bloom-inline", sparsify(bloom, **inline), inline, ["AutoModelForCausalLM"])


def own_save(model, folder):
    model.save_pretrained(folder)


def small_bloom():
    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=23, hidden_size=16, n_layer=2, n_head=2)
    return spread(transformers.BloomForCausalLM(config).eval())


def keep_parts():
    part = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    part |= {"eos_token_id": EOS, "projection_dim": 8}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={**part, "vocab_size": 23, "max_position_embeddings": 16},
        vision_config={**part, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    layers = {"attn": {"encoder": ["entmax15", None, "sparsemax", {"name": "entmax", "alpha": 1.2}]}}
    model = sparsify(spread(CLIPModel(config).eval()), **layers)
    text, image = {key: TEXT[key] for key in ("input_ids", "attention_mask")}, {"pixel_values": IMAGE}
    save_pretrained(model, OUT / "clip-layers")
    whole = dict.fromkeys(["hf_sparse", "AutoModel"], text | image)
    parts = {"CLIPTextModelWithProjection": text, "CLIPVisionModelWithProjection": image, "CLIPVisionModel": image}
    finish("clip-layers", layers, whole | parts)
    model.vision_model.save_pretrained(OUT / "clip-vision-alone")
    finish("clip-vision-alone", layers, dict.fromkeys(["hf_sparse", "CLIPVisionModel"], image))

    sizes = {**DECODER, "vocab_size": 23, "num_hidden_layers": 1}
    decoder = spread(BertLMHeadModel(BertConfig(is_decoder=True, add_cross_attention=True, **sizes)).eval())
    model = EncoderDecoderModel(encoder=spread(BertModel(BertConfig(**sizes)).eval()), decoder=decoder)
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
    both = {"attn": {"encoder": "sparsemax", "cross": {"name": "entmax", "alpha": 1.3}}, "head": "entmax15"}
    keep("encoder-decoder-of-berts", sparsify(model, **both), both, ["AutoModelForSeq2SeqLM"])


def keep_adapters():
    tiny("bart").save_pretrained(OUT / "bart-dense")
    note(OUT / "bart-dense", settings={}, loaders={})
    lora = {"target_modules": ["q_proj"], "r": 2, "init_lora_weights": False}
    torch.manual_seed(7)
    base = hf_sparse.from_pretrained(OUT / "llama-saved-by-model")
    keep_adapter(
        "adapter-on-sparse-base", "llama-saved-by-model", get_peft_model(base, LoraConfig(**lora)), save_pretrained
    )
    base = hf_sparse.from_pretrained(OUT / "llama-saved-by-model")
    base.add_adapter(LoraConfig(**lora))
    loaders = ["AutoModelForCausalLM"]
    keep_adapter("adapter-added-to-sparse-model", "llama-saved-by-model", base, own_save, loaders)
    base = transformers.BartForConditionalGeneration.from_pretrained(OUT / "bart-dense")
    settings = {
        "encoder": {"name": "entmax", "alpha": "learned"},
        "cross": {"name": "csparsemax", "fertility": "predicted"},
    }
    sparsify(base, attn=settings, head="entmax15", fertility=tagger(), training_fertility=guided())
    model = get_peft_model(moved(base), LoraConfig(**lora, modules_to_save=["sparse_alpha"]))
    keep_adapter("adapter-on-dense-base", "bart-dense", moved(model), save_pretrained)


def keep_other_formats():
    ids, mask = TEXT["input_ids"], TEXT["attention_mask"]
    for name, made in (("fertility-predictor", tagger()), ("guided-fertility", guided())):
        made.save_pretrained(OUT / name)
        save_file(
            {"input_ids": ids, "attention_mask": mask, "bounds": made(ids, mask)}, OUT / name / "expected.safetensors"
        )
        note(OUT / name, reader=type(made).__name__)
    sources = [["das", "Haus"], ["das", "Buch"], ["ein", "Buch"], ["Häuser"]]
    targets = [["the", "house"], ["the", "book"], ["a", "book"], ["the", "houses"]]
    aligner = WordAligner.train(sources, targets)
    aligner.save_pretrained(OUT / "word-aligner")
    links = aligner.align(sources, targets)
    note(OUT / "word-aligner", reader="WordAligner", sources=sources, targets=targets, links=links)


def keep_annealing():
    """A training checkpoint half way from softmax to the target, which is kept in the trainer's state."""
    folder, run = OUT / "annealing", OUT / "run"
    settings = {"attn": {"name": "entmax", "alpha": 1.6}, "head": "entmax15"}
    model = sparsify(tiny("llama"), **settings)
    arguments = SparseTrainingArguments(
        str(run), max_steps=4, save_steps=2, per_device_train_batch_size=2, report_to="none", disable_tqdm=True,
        use_cpu=True,
    )  # fmt: skip
    data = Dataset.from_dict({"input_ids": tokens(4).tolist(), "labels": tokens(4).tolist()})
    SparseTrainer(model, arguments, train_dataset=data, callbacks=[AnnealingCallback(over=4)]).train()
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "trainer_state.json"):
        shutil.copy(run / "checkpoint-2" / name, folder / name)
    shutil.rmtree(run)
    finish("annealing", settings, dict.fromkeys(["hf_sparse", "AutoModelForCausalLM"], TEXT))


def keep_arithmetic():
    """Plain arithmetic, by which a test can tell whether this machine rounds as the one that made the checkpoints."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator) for shape in ((14, 16), (23, 16)))
    z = torch.nn.functional.linear(x, w)
    y = torch.cat([z, z.softmax(-1), z.exp(), torch.nn.functional.gelu(z), torch.nn.functional.silu(z)])
    save_file({"x": x, "w": w, "y": y}, OUT / "arithmetic.safetensors")


def add_kernel_outputs():
    """Outputs under the C++ kernel, beside the others where they differ: ``0.logits`` and ``0.logits.cpp``."""
    from hf_sparse.kernels import chosen  # its name at that commit

    if chosen("auto", torch.zeros(2, 3)) != "cpp":
        raise SystemExit("build the C++ kernel first, and leave HF_SPARSE_CPP unset")
    for path in sorted(OUT.glob("*/expected.safetensors")):
        reads = json.loads((path.parent / "made.json").read_text()).get("loaders", {})
        expected = load_file(path)
        for loader, number in reads.items():
            prefix = f"{number}.inputs."
            inputs = {key.removeprefix(prefix): v for key, v in expected.items() if key.startswith(prefix)}
            for key, value in outputs(loader, path.parent, inputs).items():
                if not torch.equal(value, expected[f"{number}.{key}"]):
                    expected[f"{number}.{key}.cpp"] = value
        save_file(expected, path)


if __name__ == "__main__":
    OUT = Path(sys.argv[1])
    if "--cpp" in sys.argv:
        add_kernel_outputs()
    else:
        OUT.mkdir(parents=True)
        keep_models()
        keep_parts()
        keep_adapters()
        keep_other_formats()
        keep_annealing()
        keep_arithmetic()
