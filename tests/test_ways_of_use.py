"""What people do with a Transformers model, done with a sparse one."""

import copy
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    DataCollatorWithFlattening,
    PreTrainedTokenizerFast,
    TextStreamer,
    pipeline,
)

from hf_sparse import (
    SparseTrainer,
    from_pretrained,
    is_sparse,
    losses,
    probabilities,
    save_pretrained,
    sparse_config,
    sparsify,
)
from hf_sparse.attention import attention_sites, observe
from tests.tiny_models import BUILD, attentions, labelled, tiny_model, tokens
from tests.training.runs import arguments

BOTH = {"attn": "entmax15", "head": "entmax15"}
LORA = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}


def word_tokenizer():
    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(20))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="w0")


def loss_and_gradients(model, inputs):
    loss = model(**inputs).loss
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return loss.detach(), gradients


def checkpointed(model):
    """The model in training, without dropout, with activation checkpointing."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return model.train()


@pytest.mark.parametrize("name", ["llama", "t5", "bart", "gpt2"])
def test_gradient_checkpointing_changes_nothing(name):
    model = sparsify(tiny_model(name), **BOTH)
    inputs = labelled(model)
    expected, gradients = loss_and_gradients(model, inputs)
    loss, again = loss_and_gradients(checkpointed(model), inputs)
    torch.testing.assert_close(loss, expected)
    for one, other in zip(gradients, again, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2", "bart", "bert"])
def test_what_a_checkpoint_computes_again_is_computed_as_before_though_nobody_counts_any_more(name):
    """Sentences long enough for the C++ kernel; supports are counted in the forward pass alone."""
    model = sparsify(tiny_model(name), **BOTH)
    ids, padding = tokens(16, 48), torch.arange(48) < torch.arange(16)[:, None]
    inputs = {"input_ids": ids, "labels": ids, "attention_mask": (~padding).long()}
    with torch.no_grad(), observe(model) as by_torch:
        model(**inputs)
    expected, gradients = loss_and_gradients(model, inputs)
    with observe(checkpointed(model)) as counts:
        loss = model(**inputs).loss
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected)
    for p, gradient in zip((p for p in model.parameters() if p.grad is not None), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, atol=1e-5, rtol=1e-4)
    for path, count in counts.items():  # of scores that are rounded otherwise from the second layer on
        assert count.rows == by_torch[path].rows
        assert count.nonzero == pytest.approx(by_torch[path].nonzero, rel=1e-3)


@pytest.mark.slow
def test_a_checkpoint_is_computed_again_as_before_though_the_loss_built_the_kernel(tmp_path, kept_compiler):
    program = """
        from hf_sparse import sparsify
        from tests.tiny_models import tiny_model, tokens
        model = sparsify(tiny_model("llama", vocab_size=10_000), attn="entmax15", head="entmax15").train()
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        ids = tokens(8, 32, 10_000)
        model(input_ids=ids, labels=ids).loss.backward()
    """
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    environment["CXX"] = kept_compiler
    found = subprocess.run([sys.executable, "-c", dedent(program)], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert list((tmp_path / "hf_sparse").iterdir())


@pytest.mark.parametrize("name", ["llama", "t5", "bert"])
def test_bfloat16_autocast_trains(name):
    model = sparsify(tiny_model(name), **BOTH)
    inputs = labelled(model)
    expected = model(**inputs).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=0.1)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@torch.no_grad()
def test_the_dtype_may_change_after_sparsify():
    model = sparsify(tiny_model("llama"), **BOTH).to(torch.bfloat16)
    weights = attentions(model, input_ids=tokens())[0]
    assert weights.dtype == torch.bfloat16
    assert (weights == 0).any()
    assert model(tokens(), log_probs=True).logits.dtype == torch.float32


@torch.no_grad()
def test_the_device_may_change_after_sparsify():
    model = sparsify(tiny_model("llama"), **LEARNED)
    expected, weights = model(tokens()).logits, model.state_dict()
    model.to("meta")
    assert all(module.sparse_alpha.value.is_meta for module, _ in attention_sites(model))
    model.to_empty(device="cpu")
    model.load_state_dict(weights)
    for name, buffer in tiny_model("llama").named_buffers():
        model.get_buffer(name).copy_(buffer)  # rotary frequencies are not in the state
    assert torch.equal(model(tokens()).logits, expected)


@torch.no_grad()
def test_a_model_made_sparse_on_the_meta_device_takes_weights_later():
    expected = sparsify(tiny_model("bart"), **BOTH)
    with torch.device("meta"):
        model = type(expected)._dense_class(expected._dense_class.config_class(**BUILD["bart"][2], vocab_size=23))
    sparsify(model.eval(), **BOTH)
    model.to_empty(device="cpu")
    model.load_state_dict(expected.state_dict())
    inputs = labelled(expected)
    assert torch.equal(model(**inputs).logits, expected(**inputs).logits)
    assert torch.equal(model(**inputs).loss, expected(**inputs).loss)


@pytest.mark.parametrize(
    ("settings", "left_open"),
    [
        ({"head": "alpha_relu"}, "tau of head"),
        ({"attn": {"name": "entmax", "alpha": "learned"}}, "alpha of attn"),
        (
            {"attn": {"cross": {"name": "entmax15", "temperature": {"learned": 2.0}}}},
            r"temperature of attn\['cross'\]",
        ),
        ({"attn": {"cross": {"name": "softmax", "coverage": "vector"}}}, r"coverage of attn\['cross'\]"),
    ],
    ids=["tau", "alpha", "temperature", "coverage"],
)
def test_what_a_run_works_out_is_refused_on_the_meta_device(settings, left_open):
    model = tiny_model("bart").to("meta")
    with pytest.raises(ValueError, match=rf"its device is meta, .* work out {left_open}; load the weights first"):
        sparsify(model, **settings)
    assert not is_sparse(model)


def test_what_a_saved_model_says_of_its_heads_is_taken_on_the_meta_device():
    learned = {"name": "entmax", "alpha": "learned", "coverage": "vector"}
    expected = sparsify(tiny_model("bart"), attn={"cross": learned})
    model = sparsify(tiny_model("bart").to("meta"), attn=sparse_config(expected).to_dict()["attn"])
    shapes, those = ({n: p.shape for n, p in m.named_parameters() if "sparse" in n} for m in (model, expected))
    assert shapes == those
    assert len(shapes) == 4


@pytest.mark.parametrize("head", ["entmax15", "alpha_relu", {"name": "entmax", "alpha": 1.3, "temperature": "auto"}])
@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("vocab_size", [31, 20])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "t5"])
def test_a_vocabulary_that_grows_or_shrinks_keeps_the_maps(name, vocab_size, fused_loss, head, tmp_path):
    model = sparsify(tiny_model(name), attn="entmax15", head=head, fused_loss=fused_loss)
    config = sparse_config(model)
    model.resize_token_embeddings(vocab_size)
    assert sparse_config(model) == config
    ids = tokens(vocab_size=20)
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    logits = model(**inputs).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(logits.shape[:-1]))
    model(input_ids=ids, labels=ids).loss.backward()
    assert model.get_output_embeddings().weight.grad.shape[0] == vocab_size
    model.save_pretrained(tmp_path)
    again = model._dense_class.from_pretrained(tmp_path)
    assert sparse_config(again) == config
    assert torch.equal(again(**inputs).logits, logits)


def test_pipeline_and_streamer(capsys):
    model, tokenizer = sparsify(tiny_model("llama"), **BOTH), word_tokenizer()
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    (output,) = generator("w3 w4 w5", max_new_tokens=3, do_sample=False)
    ids = torch.tensor([tokenizer("w3 w4 w5")["input_ids"]])
    expected = model.generate(ids, max_new_tokens=3, do_sample=False, streamer=TextStreamer(tokenizer))
    text = tokenizer.decode(expected[0], skip_special_tokens=True)
    assert output["generated_text"].replace(" ", "") == text.replace(" ", "")
    assert tokenizer.decode(expected[0, -1]) in capsys.readouterr().out


@pytest.mark.parametrize("name", ["bert", "bart"])
@torch.no_grad()
def test_a_fill_mask_pipeline_reads_the_sparse_distribution(name):
    model, tokenizer = tiny_model(name), word_tokenizer()
    tokenizer.mask_token = "w9"
    ids = torch.tensor([tokenizer("w3 w9 w5")["input_ids"]])

    def scores(model):
        found = pipeline("fill-mask", model=model, tokenizer=tokenizer)("w3 w9 w5", top_k=len(tokenizer))
        return torch.tensor([row["score"] for row in sorted(found, key=lambda row: row["token"])])

    dense = scores(model)
    torch.testing.assert_close(dense, model(ids).logits[0, 1].softmax(-1)[: len(dense)])
    sparse = scores(sparsify(model, **BOTH))
    expected = probabilities(model, model(ids).logits)[0, 1]
    assert (sparse == 0).any()
    torch.testing.assert_close(sparse, expected)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "query"]))
    torch.testing.assert_close(scores(adapted), expected)


@torch.no_grad()
def test_lora_in_both_orders_is_the_same_model():
    torch.manual_seed(0)
    first = get_peft_model(sparsify(tiny_model("llama"), **BOTH), LoraConfig(**LORA))
    torch.manual_seed(0)
    second = sparsify(get_peft_model(tiny_model("llama"), LoraConfig(**LORA)), **BOTH)
    ids = tokens()
    torch.testing.assert_close(first(ids).logits, second(ids).logits)
    assert sparse_config(first) == sparse_config(second)
    generated = first.generate(input_ids=ids, max_new_tokens=3, num_beams=2, do_sample=False)
    assert torch.equal(generated, second.generate(input_ids=ids, max_new_tokens=3, num_beams=2, do_sample=False))


@torch.no_grad()
def test_a_merged_model_stays_sparse():
    model = get_peft_model(sparsify(tiny_model("llama"), **BOTH), LoraConfig(**LORA))
    expected = model(tokens()).logits
    merged = model.merge_and_unload()
    assert is_sparse(merged)
    torch.testing.assert_close(merged(tokens()).logits, expected, atol=1e-5, rtol=1e-4)
    assert (attentions(merged, input_ids=tokens())[0] == 0).any()


@torch.no_grad()
def test_an_adapter_loads_onto_a_sparse_base(tmp_path):
    base = sparsify(tiny_model("llama"), **BOTH)
    model = get_peft_model(base, LoraConfig(**LORA))
    expected = model(tokens()).logits
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(sparsify(tiny_model("llama"), **BOTH), tmp_path)
    torch.testing.assert_close(again(tokens()).logits, expected)


LEARNED = {"attn": {"name": "entmax", "alpha": "learned"}, "head": "entmax15"}


def learned_alphas(model):
    """The numbers that attention reads."""
    return [module.sparse_alpha(None).detach().clone() for module, _ in attention_sites(model)]


@pytest.mark.parametrize("kept", [True, False])
def test_lora_trains_and_saves_a_learned_alpha_that_is_named(kept, tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "base")
    base = sparsify(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), **LEARNED)
    start = learned_alphas(base)
    names = {"modules_to_save": ["sparse_alpha"]} if kept else {}
    model = get_peft_model(base, LoraConfig(**LORA, **names))
    data = Dataset.from_dict({"input_ids": tokens(4).tolist(), "labels": tokens(4).tolist()})
    SparseTrainer(model, arguments(tmp_path / "run", max_steps=2), train_dataset=data).train()
    moved = [not torch.equal(one, other) for one, other in zip(start, learned_alphas(model))]
    assert moved == [kept, kept]
    save_pretrained(model, tmp_path / "adapter")
    again = from_pretrained(tmp_path / "adapter")
    for one, other in zip(learned_alphas(model), learned_alphas(again), strict=True):
        assert torch.equal(one, other)
    expected = model.eval()(input_ids=tokens()).logits
    # In float64: how a CPU rounds sums may depend on where a matrix lies in memory.
    ours, theirs = (copy.deepcopy(each).double().eval()(input_ids=tokens()).logits for each in (again, model))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=tokens()).logits, expected, atol=1e-5, rtol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(from_pretrained(tmp_path / "merged")(tokens()).logits, expected, atol=1e-5, rtol=1e-4)


def test_a_learned_alpha_that_peft_would_not_save_is_refused():
    model = get_peft_model(tiny_model("llama"), LoraConfig(**LORA))
    with pytest.raises(ValueError, match=r"make the model sparse first, then get_peft_model .*sparse_alpha"):
        sparsify(model, **LEARNED)
    assert not is_sparse(model)


def test_torch_save_brings_the_whole_model_back(tmp_path):
    model = sparsify(tiny_model("t5"), attn="sparsemax", head={"name": "alpha_relu", "tau": 0.2})
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    inputs = labelled(model)
    assert torch.equal(again(**inputs).loss, model(**inputs).loss)
    assert len(attention_sites(again)) == len(attention_sites(model))


TWO_PROCESSES = """
import sys
import torch
from datasets import Dataset
from hf_sparse import SparseTrainer, SparseTrainingArguments, sparsify
from tests.tiny_models import tiny_model
from tests.training.runs import rows_of_uneven_length, arguments, ROWS

model = sparsify(tiny_model("bart").eval(), attn="entmax15", head="entmax15")
for module in model.modules():
    if isinstance(getattr(module, "dropout", None), float):
        module.dropout = 0.0
world = int(sys.argv[2])
args = arguments(sys.argv[1], per_device_train_batch_size=ROWS // world, max_steps=2)
trainer = SparseTrainer(model, args, train_dataset=rows_of_uneven_length())
trainer.train()
if trainer.accelerator.is_main_process:
    torch.save({n: p.detach().clone() for n, p in model.named_parameters()}, f"{sys.argv[1]}/{world}.pt")
"""


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from hf_sparse import is_sparse, learn_settings, sparsify
from tests.tiny_models import labelled, tiny_model

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
settings = {"attn": {"name": "entmax", "alpha": "learned"}, "head": "entmax15"}
whole, sharded = (sparsify(tiny_model("llama"), **settings) for _ in range(2))
for layer in sharded.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
assert is_sparse(sharded)
losses = [model(**labelled(whole)).loss for model in (whole, sharded)]
torch.testing.assert_close(losses[0], losses[1])
for loss in losses:
    loss.backward()
alphas = [model.model.layers[0].self_attn.sparse_alpha.value.grad for model in (whole, sharded)]
torch.testing.assert_close(alphas[0], alphas[1].full_tensor())

late = tiny_model("llama")
fully_shard(late, mesh=mesh)
try:
    sparsify(late, **settings)
except ValueError as error:
    assert "make the model sparse before fully_shard" in str(error), error
else:
    raise AssertionError("gradients of a learned setting would not be averaged")
sparsify(late, attn="entmax15", head="entmax15")
whole = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
torch.testing.assert_close(whole(**labelled(whole)).loss, late(**labelled(whole)).loss)
try:
    learn_settings(late)
except ValueError as error:
    assert "make the model sparse before fully_shard" in str(error), error
else:
    raise AssertionError("gradients of a learned setting would not be averaged")

for head_options in (None, {"reshard_after_forward": False}, {}):
    whole, sharded = (sparsify(tiny_model("llama"), head="entmax15", fused_loss=True).train() for _ in range(2))
    if head_options is not None:
        fully_shard(sharded.lm_head, mesh=mesh, **head_options)
    fully_shard(sharded, mesh=mesh)
    if head_options == {}:
        try:
            sharded(**labelled(whole))
        except RuntimeError as error:
            assert "reshard_after_forward=False" in str(error), error
            continue
        raise AssertionError("weights that are gone were not missed")
    losses = [model(**labelled(whole)).loss for model in (whole, sharded)]
    torch.testing.assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(whole.lm_head.weight.grad, sharded.lm_head.weight.grad.full_tensor())
"""

# On the interpreter's own way out gloo's threads can abort the process, when all the work is done.
LEAVE = """
import os
if torch.distributed.is_initialized():
    torch.distributed.barrier()
os._exit(0)
"""


ROOT = Path(__file__).resolve().parents[1]


def launch(path, script, *arguments):
    """Run a script in two processes, without GPUs."""
    path.write_text(script + LEAVE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    options = ["--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *options, str(path), *map(str, arguments)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.fixture
def run_here(monkeypatch):
    """Run a script in this process, without GPUs."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")

    def run(path, script, *arguments):
        path.write_text(script)
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path))

    return run


@pytest.mark.slow
def test_a_sharded_model_has_the_loss_and_gradients_of_the_whole(tmp_path):
    launch(tmp_path / "shard.py", SHARDED)


@pytest.mark.slow
def test_two_processes_train_as_one(run_here, tmp_path):
    run_here(tmp_path / "one.py", TWO_PROCESSES, tmp_path, 1)
    launch(tmp_path / "two.py", TWO_PROCESSES, tmp_path, 2)
    one, two = torch.load(tmp_path / "1.pt"), torch.load(tmp_path / "2.pt")
    start = dict(sparsify(tiny_model("bart"), **BOTH).named_parameters())
    assert max(float((one[n] - start[n].detach()).abs().max()) for n in one) > 1e-3
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_script_for_accelerate_launch_trains_and_logs_the_same_in_two_processes(run_here, tmp_path):
    script = re.search(r"```python\n(# train\.py\n.*?)```", (ROOT / "docs" / "using.md").read_text(), re.DOTALL)[1]
    run_here(tmp_path / "one.py", script, tmp_path / "1")
    launch(tmp_path / "two.py", script, tmp_path / "2")
    one, two = (load_file(tmp_path / world / "model.safetensors") for world in "12")
    assert any("sparse_alpha" in name for name in one)
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=1e-4)
    logs = [json.loads((tmp_path / world / "checkpoint-4/trainer_state.json").read_text()) for world in "12"]
    for ours, theirs in zip(*(log["log_history"][:4] for log in logs), strict=True):
        assert {"attention_support", "attention_zero_rate", "head_support", "head_zero_rate"} < set(ours)
        assert theirs == pytest.approx(ours, rel=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2"])
def test_packed_sequences_are_as_if_alone(name, tmp_path):
    model = sparsify(tiny_model(name), **BOTH)
    rows = [tokens(1, length, seed=length) for length in (5, 1, 4)]
    batch = DataCollatorWithFlattening(return_tensors="pt")([{"input_ids": row[0].tolist()} for row in rows])
    logits = torch.cat([model(row, log_probs=False).logits for row in rows], dim=1).detach()
    scored = torch.cat([model(row, log_probs=False).logits[0, :-1] for row in rows])
    expected = losses.entmax15_loss(scored, torch.cat([row[0, 1:] for row in rows])).detach()
    output = model(**batch, use_cache=False)
    torch.testing.assert_close(output.logits, logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output.loss, expected)
    data = Dataset.from_list([{"input_ids": row[0].tolist()} for row in rows])
    args = arguments(tmp_path, per_device_train_batch_size=len(rows))
    trainer = SparseTrainer(model, args, train_dataset=data, data_collator=DataCollatorWithFlattening())
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(float(expected), rel=1e-4)


@torch.no_grad()
def test_packed_sequences_that_would_mix_are_refused():
    model = sparsify(tiny_model("llama"), **BOTH)
    rows = [{"input_ids": tokens(1, length)[0].tolist()} for length in (5, 4)]
    told = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=True)(rows)
    alone = [model(torch.tensor([row["input_ids"]]), log_probs=False).logits for row in rows]
    torch.testing.assert_close(model(**told, use_cache=False).logits, torch.cat(alone, 1), atol=1e-4, rtol=1e-4)
    for batch in (told, {**told, "position_ids": None, "use_cache": False}):
        with pytest.raises(ValueError, match=r"does not read cu_seq_lens, .* position_ids .* and use_cache=False"):
            model(**batch)
    first = torch.arange(9) < 5
    apart = (first[:, None] == first) & torch.ones(9, 9, dtype=torch.bool).tril()
    masked = model(**told, attention_mask=torch.where(apart, 0.0, torch.finfo().min)[None, None])
    torch.testing.assert_close(masked.logits, torch.cat(alone, 1), atol=1e-4, rtol=1e-4)
    sparsify(tiny_model("llama"), head="sparsemax")(**told)  # its attention is the dense model's


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_packed_sequences_are_refused_where_masks_do_not_heed_positions(name):
    """Dense ones mix them in eager attention, and keep them apart in flash attention alone."""
    model = sparsify(tiny_model(name), **BOTH)
    rows = [{"input_ids": tokens(1, length)[0].tolist()} for length in (5, 4)]
    told = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=True)(rows)
    del told["labels"]
    with pytest.raises(
        ValueError, match=r"Attention does not read cu_seq_lens, .* mask \(1, 1, .* one sequence in each"
    ):
        model(**told, use_cache=False)
    alone = [model(torch.tensor([row["input_ids"]])).logits for row in rows]
    first = torch.arange(9) < 5
    apart = first[:, None] == first
    masked = model(**told, attention_mask=torch.where(apart, 0.0, torch.finfo().min)[None, None], use_cache=False)
    torch.testing.assert_close(masked.logits, torch.cat(alone, 1), atol=1e-4, rtol=1e-4)
    one = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=True)(rows[:1])
    del one["labels"]
    torch.testing.assert_close(model(**one, use_cache=False).logits, alone[0], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_packed_sequences_are_refused_by_a_model_without_position_ids():
    config = BloomConfig(vocab_size=23, hidden_size=32, n_layer=1, n_head=4)
    model = sparsify(BloomForCausalLM(config).eval(), attn="entmax15")
    ids, lengths = tokens(1, 9), torch.tensor([0, 5, 9])
    with pytest.raises(ValueError, match="BloomForCausalLM takes no position_ids: give one sequence in each row"):
        model(ids, position_ids=torch.arange(9)[None], cu_seq_lens_q=lengths, cu_seq_lens_k=lengths, use_cache=False)
