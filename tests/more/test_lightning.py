"""Lightning trains a sparse model in every precision, and its checkpoints hold what was learned."""

import lightning
import pytest
import torch
from torch.utils.data import DataLoader

import hf_sparse
from tests.tiny_models import tiny_model, tokens


class Module(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model, self.losses = model, []

    def training_step(self, batch, _):
        loss = self.model(**batch).loss
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-4)  # float16 does not hold the usual eps


def sparse(**settings):
    return hf_sparse.sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": "learned"}, **settings)


@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-true", "64-true"])
def test_training(precision, fused_loss, tmp_path):
    """A precision with ``true`` makes that dtype torch's default while the model runs."""
    settings = {"head": "entmax15", "fused_loss": fused_loss}
    data = [{"input_ids": ids, "labels": ids} for ids in tokens(16)]
    module = Module(sparse(**settings).train())
    trainer = lightning.Trainer(
        max_epochs=6, accelerator="cpu", precision=precision, accumulate_grad_batches=2, gradient_clip_val=1.0,
        logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=4))
    assert sum(module.losses[-4:]) < sum(module.losses[:4])
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    again = Module(sparse(**settings)).to(module.model.dtype)
    again.load_state_dict(torch.load(checkpoint, weights_only=True)["state_dict"])
    ids = tokens(2)
    with torch.no_grad():
        assert torch.equal(again.model.eval()(ids).logits, module.model.eval()(ids).logits)
    start, learned = (model.model.layers[0].self_attn.sparse_alpha.value for model in (sparse(), again.model))
    assert not torch.allclose(start.to(learned.dtype), learned)
