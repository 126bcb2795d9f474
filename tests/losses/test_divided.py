"""Fused losses of a layer whose classes are divided over two processes, and models under tensor parallelism."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_sparse import sparsify
from tests.test_ways_of_use import launch

LAYER = """
import itertools
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from hf_sparse.losses import linear_fenchel_young_loss
from tests.tolerances import GRADIENT

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
generator = torch.Generator().manual_seed(0)
MAPS = [
    ("softmax", {}), ("sparsemax", {}), ("entmax15", {}),
    *(("entmax", {"alpha": alpha}) for alpha in (1 + 1e-8, 1.02, 1.25, 1.7, 2.0)),
    ("alpha_relu", {"alpha": 1.5, "tau": 0.3}), ("alpha_relu", {"alpha": 3.0, "tau": -0.2}),
]
OPTIONS = [
    {}, {"label_smoothing": 0.1}, {"softcap": 3.0}, {"scale": 0.5, "chunk_size": 2}, {"reduction": "sum"},
    {"reduction": "none"}, {"num_items": 11}, {"ignore_index": 4},
]


def made(*shape, dtype, deviation=1.0):
    return (deviation * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def compare(name, settings, options, dtype, num_classes, with_bias, masked=None):
    hidden, weight = made(2, 3, 8, dtype=dtype), made(num_classes, 8, dtype=dtype)
    bias = made(num_classes, dtype=dtype) if with_bias else None
    y = torch.randint(0, num_classes, (2, 3), generator=generator)
    y[0, 0] = options.get("ignore_index", -100)
    if masked is not None:
        bias[masked], y[y == masked] = -torch.inf, 0
    results = []
    for divided in (False, True):
        parts = [None if part is None else part.clone() for part in (hidden, weight, bias)]
        if divided:
            parts[1:] = [None if p is None else distribute_tensor(p, mesh, [Shard(0)]) for p in parts[1:]]
        parts = [None if part is None else part.requires_grad_() for part in parts]
        loss = linear_fenchel_young_loss(parts[0], parts[1], y, name, bias=parts[2], **settings, **options)
        (loss * torch.arange(1, loss.numel() + 1).view(loss.shape)).sum().backward()
        gradients = [part.grad for part in parts if part is not None]
        results.append([loss, *(g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients)])
    for one, two in zip(*results):
        near = GRADIENT.get(dtype, 2**-6)
        torch.testing.assert_close(two, one, rtol=near, atol=near, msg=lambda m: f"{name} {settings} {options}: {m}")


for (name, settings), options in itertools.product(MAPS, OPTIONS):
    compare(name, settings, options, torch.float64, 21, with_bias="scale" not in options)
for name, settings in MAPS:
    compare(name, settings, {}, torch.float32, 21, with_bias=False)
compare("entmax15", {}, {}, torch.bfloat16, 21, True)
compare("entmax15", {}, {}, torch.float32, 21, True, masked=20)
for num_classes in (1, 2, 3):  # one of the processes may have no class at all
    compare("entmax15", {}, {}, torch.float64, num_classes, True)
# Logits of the size of trained ones: nearly all of a row is outside the support.
compare("entmax", {"alpha": 1.3}, {"scale": 50.0}, torch.float64, 4096, False)
compare("sparsemax", {}, {"scale": 1e4}, torch.float64, 4096, False)

weight = made(6, 8, dtype=torch.float32)
rows = distribute_tensor(weight, mesh, [Shard(0)])


def refusal(*arguments, **options):
    try:
        linear_fenchel_young_loss(*arguments, **options)
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")


hidden, y = made(3, 8, dtype=torch.float32), torch.tensor([0, 5, 2])
assert "divided by rows" in refusal(hidden, distribute_tensor(weight, mesh, [Shard(1)]), y, "entmax15")
two_axes = distribute_tensor(weight, init_device_mesh("cpu", (2, 1)), [Shard(0), Replicate()])
assert "on a mesh of 2 axes" in refusal(hidden, two_axes, y, "entmax15")
assert "at most 2" in refusal(hidden, rows, y, "entmax", alpha=2.5)
assert "must be given the same rows" in refusal(hidden, rows, y + dist.get_rank() * (y == 2), "entmax15")
assert "must be given the same rows" in refusal(hidden[dist.get_rank() :], rows, y[dist.get_rank() :], "entmax15")
assert "must be given the same rows" in refusal(hidden, rows, y.roll(dist.get_rank()), "entmax15")
hidden.requires_grad_()
try:
    torch.autograd.grad(linear_fenchel_young_loss(hidden, rows, y, "entmax15"), hidden, create_graph=True)
except RuntimeError as error:
    assert "no second derivative" in str(error)
else:
    raise AssertionError("a second derivative was not refused")
"""

MODEL = """
import sys
import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
import hf_sparse

ids = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(1))


def figures(folder, **options):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **options)
    model.train()
    output = model(input_ids=ids, labels=ids)
    output.loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    whole = {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in gradients.items()}
    model.eval()
    looked_at = model(input_ids=ids, labels=ids).loss.detach()
    with torch.no_grad():
        p = hf_sparse.probabilities(model, model(input_ids=ids).logits)
    tokens = model.generate(ids, max_new_tokens=4, do_sample=False)
    beams = model.generate(ids, max_new_tokens=4, num_beams=3, do_sample=False)
    return {"loss": output.loss.detach(), "evaluated": looked_at, "p": p, **whole}, (tokens, beams)


torch.set_num_threads(1)
for folder in sys.argv[1:]:
    parallel, (tokens, beams) = figures(folder, distributed_config=DistributedConfig(tp_plan="auto"))
    alone, (same_tokens, same_beams) = figures(folder)
    assert alone.keys() == parallel.keys()
    for name in alone:
        torch.testing.assert_close(parallel[name], alone[name], rtol=1e-9, atol=1e-9, msg=lambda m: f"{name}: {m}")
    assert torch.equal(parallel["p"] > 0, alone["p"] > 0)
    assert bool((alone["p"] == 0).any()) == ("softmax" not in folder)
    assert torch.equal(tokens, same_tokens) and torch.equal(beams, same_beams)
"""

REFUSED = """
import sys
import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
import hf_sparse

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], distributed_config=DistributedConfig(tp_plan="auto"))
ids = torch.tensor([[3, 4, 5]])
calls = {
    "compare in one process": [lambda: hf_sparse.compare(model, [{"input_ids": ids}], "entmax15")],
    "make the model sparse in one process": [
        lambda: hf_sparse.sparsify(model, attn={"name": "entmax", "alpha": "learned"}),
        lambda: hf_sparse.sparsify(model, attn={"name": "entmax", "alpha": [1.2, 1.5]}),
        lambda: hf_sparse.sparsify(model, attn={"name": "entmax", "alpha": [1.2, 1.5, 1.8, 2.0]}),
        lambda: hf_sparse.learn_settings(hf_sparse.sparsify(model, attn="entmax15")),
    ],
    "calibrate the model in one process": [lambda: hf_sparse.calibrate(model, [{"input_ids": ids}])],
    "use one process": [lambda: hf_sparse.certify(model, {"input_ids": ids}, torch.tensor([[3, 4, 5, 6]]))],
}
for way_out, refused in calls.items():
    for call in refused:
        try:
            call()
        except ValueError as error:
            assert way_out in str(error), error
        else:
            raise AssertionError("settings of heads that are elsewhere were taken")
"""


@pytest.mark.slow
def test_a_layer_divided_by_classes_has_the_loss_and_gradients_of_the_whole(tmp_path):
    launch(tmp_path / "layer.py", LAYER)


@pytest.mark.slow
def test_models_under_tensor_parallelism_equal_those_in_one_process(tmp_path):
    folders = []
    for head in ("entmax15", "alpha_relu", "softmax", {"name": "alpha_relu", "tau": 0.5, "centered": True}):
        for tied in (False, True):
            folders.append(tmp_path / f"{head if isinstance(head, str) else 'centered'}-{tied}")
            saved(head, tied, folders[-1])
    launch(tmp_path / "model.py", MODEL, *folders)


@pytest.mark.slow
def test_attention_heads_that_are_divided_have_their_own_settings(tmp_path):
    by_head = {"name": "entmax", "alpha": [1.2, 1.5, 1.8, 2.0], "temperature": [0.5, 0.7, 1.0, 1.4]}
    learned = {"name": "entmax", "alpha": {"learned": 1.4}, "temperature": "learned"}
    folders = [tmp_path / "by_head", tmp_path / "learned"]
    for attn, folder in zip((by_head, learned), folders, strict=True):
        model = sparsify(llama(), attn=attn, head="entmax15")
        if attn is learned:
            for layer in model.model.layers:
                layer.self_attn.sparse_alpha.value.data += torch.tensor([-0.9, 0.0, 0.6, 1.2])
        model.save_pretrained(folder)
    launch(tmp_path / "model.py", MODEL, *folders)


@pytest.mark.slow
def test_what_would_see_the_heads_of_one_process_alone_is_refused_under_tensor_parallelism(tmp_path):
    llama().save_pretrained(tmp_path / "dense")
    launch(tmp_path / "model.py", REFUSED, tmp_path / "dense")


def saved(head, tied, folder):
    """A sparse Llama with the fused loss, in a folder."""
    sparsify(llama(tied), attn="entmax15", head=head, fused_loss=True).save_pretrained(folder)


def llama(tied=False):
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, **tokens, tie_word_embeddings=tied, initializer_range=0.3)
    return LlamaForCausalLM(config)
