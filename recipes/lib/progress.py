"""Progress of training on the terminal."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import ProgressCallback


class Progress(ProgressCallback):
    """Trainer's progress bar, with one short line per log entry."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Print step, loss and support sizes; results.json has the rest."""
        if self.training_bar is None or not logs or "loss" not in logs:
            return
        line = f"  step {state.global_step:>5}   loss {logs['loss']:.3f}"
        if "head_support" in logs:
            line += f"   candidates/step {logs['head_support']:.2f}"
        if "attention_support" in logs:
            line += f"   keys/query {logs['attention_support']:.2f}"
        self.training_bar.write(line)
