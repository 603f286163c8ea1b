"""The rank clock in transformers' Trainer: `RankClockCallback.attach(trainer)`.

What it does is in `torch_loop`; this maps the Trainer's events to it. `Trainer(..., callbacks=[RankClockCallback()])`
does less: the Trainer's loggers come before it and miss its metrics, and it cannot see the wrapped model.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from transformers import TrainerCallback

from rankclock.training.checkpoints import prune, save
from rankclock.training.clock import RankClock
from rankclock.training.torch_loop import TrainingClock

__all__ = ["AdapterCheckpoints", "RankClockCallback"]


class RankClockCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Options as `TrainingClock`; the folder and the checkpoints are the Trainer's output_dir unless given.

    guard=False leaves the mtimes of checkpoints alone.
    """

    def __init__(self, *, guard: bool = True, **options: Any) -> None:
        self._guard, self._options = guard, options
        self._trainer: Any = None
        self.training: TrainingClock | None = None

    @classmethod
    def attach(cls, trainer: Any, **options: Any) -> RankClockCallback:
        """Add it to a Trainer, before its loggers."""
        callback = cls(**options)
        callback._trainer = trainer
        trainer.callback_handler.callbacks.insert(0, callback)
        return callback

    @property
    def clock(self) -> RankClock | None:
        """This rank's clock; None before training begins."""
        return None if self.training is None else self.training.clock

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """The clock begins to measure; raises ClocksApart with fail=True."""
        if self.training is not None:
            self.training.close()
        options: dict[str, Any] = {"directory": args.output_dir, "log_every": max(int(args.logging_steps), 1)}
        options |= {"guard": args.output_dir} if self._guard else {}
        options |= {} if self._trainer is None else {"wrapper": self._trainer.model_wrapped}
        self.training = TrainingClock(model, **(options | self._options))
        self.training.steps = state.global_step
        self.training.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The gradient exchange is over."""
        if self.training is not None:
            self.training.exchanged()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is done; if a save is due, checkpoints are put in order before the Trainer rotates them."""
        if self.training is not None:
            self.training.step()
            if control.should_save:
                self.training.before_save()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Saves by epoch are due here."""
        if self.training is not None and control.should_save:
            self.training.before_save()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the save: other tools than the Trainer look at mtimes too."""
        if self.training is not None:
            self.training.before_save()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The metrics go into what the Trainer logs, and into its history."""
        if self.training is None:
            return
        metrics = self.training.metrics()
        if isinstance(logs, dict):
            logs.update(metrics)
        if state.log_history:
            state.log_history[-1].update(metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The last steps are exchanged and the clock ends."""
        if self.training is not None:
            self.training.close()


class AdapterCheckpoints(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Adapters beside the Trainer's checkpoints, as QLoRA's own callback saves them, but by one rank and atomically.

    That one writes the same folder from every rank. Here rank 0 publishes `<folder>/checkpoint-<step>` with a manifest
    (step, cluster time with its bound, hashes) and keeps the newest `keep`; `checkpoints.latest` finds them.
    """

    def __init__(self, folder: str | PathLike[str], *, clock: RankClockCallback | None = None, keep: int = 2) -> None:
        self._folder, self._clock, self._keep = folder, clock, keep

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Once, where the Trainer's own checkpoint of the step has just been written."""
        if not state.is_world_process_zero or model is None:
            return
        clock = self._clock.clock if self._clock is not None else None
        save(self._folder, state.global_step, model.save_pretrained, clock=clock)
        prune(self._folder, self._keep)
