"""One rank of a Lightning job on processors, with the rank clock's callback given or found by its entry point."""

from __future__ import annotations

import json
import os
import sys
import time

import pytorch_lightning as pl
import torch

from rankclock.training.lightning import ENABLE_VARIABLE, RankClockCallback


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor, _number: int) -> torch.Tensor:
        if os.environ["RANK"] == "1":
            time.sleep(0.03)
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Asks(pl.Callback):
    """Sees what the clock's callback has before it is torn down."""

    found: dict[str, object] | None = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        ours = [callback for callback in trainer.callbacks if isinstance(callback, RankClockCallback)]
        if ours and ours[0].training is not None:
            training = ours[0].training
            training.clock.wait(20)
            training.close()
            self.found = {"skew": training.skew, "steps": training.steps, "verdict": str(training.verdict)}


def main() -> None:
    torch.set_num_threads(1)
    given = [] if os.environ.get(ENABLE_VARIABLE) == "1" else [RankClockCallback(period_s=0.5)]
    asks = Asks()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=60, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1], callbacks=[*given, asks],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(4000, 8), batch_size=4))
    print("ANSWER " + json.dumps({"rank": os.environ["RANK"], "found": asks.found}), flush=True)


if __name__ == "__main__":
    main()
