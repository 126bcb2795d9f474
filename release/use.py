"""What must work in an environment that has the wheel and nothing else: the kernel, a model, types."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hf_sparse
from hf_sparse.functional import entmax15
from hf_sparse.kernels._library import library

package = Path(hf_sparse.__file__).parent
assert (package / "py.typed").is_file()
kernel = Path(library()._name)
assert kernel.parent == package / "kernels" / "prebuilt", f"{kernel} was built here"
z = torch.randn(8, 5000, generator=torch.Generator().manual_seed(0))
torch.testing.assert_close(entmax15(z, impl="cpp"), entmax15(z, impl="torch"), atol=1e-6, rtol=0)

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
)
hf_sparse.sparsify(model, attn="entmax15", head="entmax15")
ids = torch.arange(3, 13)[None]
model(ids, labels=ids).loss.backward()
p = hf_sparse.probabilities(model, model.eval()(ids).logits)
assert bool((p == 0).any())
print(f"{kernel.name} under {torch.backends.cpu.get_cpu_capability()}: fine")
