"""DeepSpeed divides a sparse model over two processes (ZeRO-2, ZeRO-3): loss, steps and checkpoint of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_sparse import from_pretrained, sparse_config
from tests.tiny_models import tiny_model

pytest.importorskip("deepspeed")
ROOT = Path(__file__).resolve().parents[2]

STEPS = """
import sys
import deepspeed
import torch
from hf_sparse import sparsify
from hf_sparse.model.lazy_logits import LinearLogits
from tests.tiny_models import labelled, tiny_model

stage = int(sys.argv[1])
deepspeed.init_distributed("gloo")
zero = {"stage": stage, "stage3_param_persistence_threshold": 0}  # small weights are freed as large ones are
config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_optimization": zero}


def without_dropout(model):
    for module in model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


for name in ("llama", "gpt2", "t5"):
    for fused in (False, True):
        settings = {"attn": {"name": "entmax", "alpha": "learned"}, "head": "entmax15", "fused_loss": fused}
        whole, divided = (without_dropout(sparsify(tiny_model(name), **settings)) for _ in range(2))
        batch = labelled(whole)
        own, optimizer = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (whole, divided))
        options = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
        engine, *_ = deepspeed.initialize(model=divided, optimizer=optimizer, config=config | options)
        for _ in range(3):  # ZeRO-3 learns in the first what is needed when
            loss, output = whole(**batch).loss, engine(**batch)
            torch.testing.assert_close(output.loss, loss, atol=1e-4, rtol=0, msg=f"{name}, fused: {fused}")
            assert isinstance(output.logits, LinearLogits) == fused
            assert not fused or not output.logits.computed
            own.zero_grad()
            loss.backward()
            own.step()
            engine.backward(output.loss)
            engine.step()
        for (path, mine), expected in zip(divided.named_parameters(), whole.parameters()):
            with deepspeed.zero.GatheredParameters([mine] if stage == 3 else []):
                mine, expected = mine.detach(), expected.detach()
                torch.testing.assert_close(mine, expected, atol=1e-4, rtol=0, msg=f"{name} {path}")
"""

TRAINER = """
import sys
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from hf_sparse import SparseTrainer, SparseTrainingArguments, calibrate, learn_settings, sparsify

dense, out = sys.argv[1:]
rows = [[3 + (i * j) % 20 for j in range(4 + i % 3)] for i in range(8)]  # of different lengths in the two processes
data = Dataset.from_dict({"input_ids": rows, "labels": rows})
config = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
args = SparseTrainingArguments(
    out, max_steps=2, per_device_train_batch_size=1, report_to=[], logging_steps=1, disable_tqdm=True,
    save_strategy="no", deepspeed=config,
)
model = AutoModelForCausalLM.from_pretrained(dense)  # divided from the start
assert model.lm_head.weight.numel() == 0
sparsify(model, attn="entmax15", head={"name": "alpha_relu"}, fused_loss=True)
calibrate(model, [{"input_ids": torch.tensor([row]), "labels": torch.tensor([row])} for row in rows], progress=False)
learn_settings(model, ["alpha"])
assert model.lm_head.weight.numel() == 0  # divided again
start = model.model.layers[0].self_attn.sparse_alpha.value.detach().clone()
trainer = SparseTrainer(model, args, train_dataset=data)
trainer.train()
assert trainer.is_deepspeed_enabled
assert all(log["head_support"] >= 1 for log in trainer.state.log_history if "loss" in log)
trainer.save_model()
if trainer.is_world_process_zero():
    torch.save(start, f"{out}.pt")
"""

# On the interpreter's own way out gloo's threads can abort the process, when all the work is done.
LEAVE = """
import os
import torch.distributed
torch.distributed.barrier()
os._exit(0)
"""


def launch(folder, script, *arguments):
    """Run a script in two processes, without GPUs."""
    path = folder / "script.py"
    path.write_text(script + LEAVE)
    modules = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    run = subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.mark.parametrize("stage", [2, 3])
def test_loss_and_steps_of_a_divided_model_are_those_of_a_whole_one(tmp_path, stage):
    launch(tmp_path, STEPS, stage)


def test_a_model_that_is_loaded_in_parts_is_made_sparse_calibrated_trained_and_saved_whole(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "dense")
    launch(tmp_path, TRAINER, tmp_path / "dense", tmp_path / "out")
    model = from_pretrained(tmp_path / "out")
    assert sparse_config(model).fused_loss
    before = tiny_model("llama")
    assert model.lm_head.weight.shape == before.lm_head.weight.shape
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    alpha = model.model.layers[0].self_attn.sparse_alpha.value
    assert alpha.shape == (model.config.num_attention_heads,)
    assert not torch.equal(alpha, torch.load(tmp_path / "out.pt"))  # trained, too
