"""The rank clock in Lightning: `Trainer(..., callbacks=[RankClockCallback()])`, or RANKCLOCK_LIGHTNING=1 and no line.

What it does is in `torch_loop`; this maps Lightning's hooks to it.
"""

from __future__ import annotations

import os
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from rankclock.training.clock import RankClock
from rankclock.training.torch_loop import TrainingClock

__all__ = ["ENABLE_VARIABLE", "RankClockCallback", "callbacks"]

ENABLE_VARIABLE = "RANKCLOCK_LIGHTNING"
"""Lightning loads the callbacks of every installed package: ours only where this is 1."""


def callbacks() -> list[RankClockCallback]:
    """For the entry point `callbacks_factory`."""
    return [RankClockCallback()] if os.environ.get(ENABLE_VARIABLE) == "1" else []


class RankClockCallback(Callback):  # type: ignore[misc]  # Lightning is not typed here
    """Options as `TrainingClock`; the folder is the trainer's default_root_dir unless given. Lightning's own
    checkpoints are chosen by step and name: they need no guard.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.training: TrainingClock | None = None

    @property
    def clock(self) -> RankClock | None:
        """This rank's clock; None before training begins."""
        return None if self.training is None else self.training.clock

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The clock begins to measure; raises ClocksApart with fail=True."""
        options = {
            "wrapper": trainer.strategy.model,
            "directory": trainer.default_root_dir,
            "log_every": max(int(trainer.log_every_n_steps), 1),
        }
        self.training = TrainingClock(pl_module, **(options | self._options))
        self.training.steps = trainer.global_step
        self.training.begin()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """The gradient exchange is over."""
        if self.training is not None:
            self.training.exchanged()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """A step is done where the optimizer has moved."""
        training = self.training
        if training is None or trainer.global_step <= training.steps:
            return
        training.step()
        if training.steps % max(int(trainer.log_every_n_steps), 1) == 0 and trainer.logger is not None:
            trainer.logger.log_metrics(training.metrics(), step=trainer.global_step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The last steps are exchanged and the clock ends; after an error too."""
        if self.training is not None:
            self.training.close()
            self.training = None
