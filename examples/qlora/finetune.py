"""QLoRA over several processes, under one clock: a 4-bit NF4 base, LoRA adapters, transformers' Trainer, torchrun.

    torchrun --nproc-per-node 2 examples/qlora/finetune.py --output out/qlora

The same script runs on GPUs (NCCL) and on processors (gloo). Nothing is downloaded: a small base model, its tokenizer
and the data are made here. For your own model give --base a folder in the Hugging Face format. What is about rankclock
is marked with (1) to (5).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from rankclock.training.hugging_face import AdapterCheckpoints, RankClockCallback  # (1)
from rankclock.training.torch_profiler import ClockedProfile  # (1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="QLoRA fine-tune under one clock.")
    parser.add_argument("--output", type=Path, default=Path("out/qlora"), help="checkpoints, clock records, traces")
    parser.add_argument("--base", type=Path, help="model and tokenizer; a small one is made where none is given")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-steps", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="trace three steps of every rank, half-way")
    parser.add_argument(
        "--fail", action="store_true", help="stop on all ranks where their clocks are apart at the start"
    )
    parser.add_argument("--late", metavar="RANK:MS", help="let a rank come late to every step, to see it named")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
    rank, state = int(os.environ.get("RANK", "0")), PartialState(cpu=not torch.cuda.is_available())
    base = options.base or options.output / "base"
    with state.local_main_process_first():
        if not (base / "config.json").exists():
            make_base(base)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    trainer = Trainer(
        model=quantised_with_adapters(base),
        args=training_arguments(options),
        train_dataset=[{"input_ids": ids} for ids in tokenizer(sentences(2000, seed=1))["input_ids"]],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    clock = RankClockCallback.attach(trainer, fail=options.fail)  # (2) cluster time, skew per step, checkpoint guard
    trainer.add_callback(AdapterCheckpoints(options.output / "adapters", clock=clock))  # (3) one writer, atomic
    if options.profile:
        trainer.add_callback(ProfileSteps(clock, options.output / f"traces/rank{rank}.pt.trace.json"))
    if options.late:
        trainer.add_callback(ComesLate(rank, options.late))
    trainer.train()
    if rank == 0 and clock.training is not None and clock.training.skew is not None:  # (4)
        (options.output / "step-skew.json").write_text(json.dumps(clock.training.skew, indent=1), encoding="utf-8")


def quantised_with_adapters(base: Path) -> torch.nn.Module:
    """The base in NF4 with double quantisation, frozen; adapters on all linear layers."""
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    device = int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=nf4, device_map={"": device}, dtype=torch.bfloat16
    )
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))


def training_arguments(options: argparse.Namespace) -> TrainingArguments:
    on_cpu = not torch.cuda.is_available()
    several = {"ddp_backend": "gloo" if on_cpu else "nccl", "ddp_find_unused_parameters": False}
    return TrainingArguments(
        output_dir=str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=8,
        learning_rate=2e-3,
        optim="adamw_torch",
        logging_steps=10,
        save_steps=options.save_steps,
        save_total_limit=2,
        report_to=[],
        use_cpu=on_cpu,
        disable_tqdm=True,
        **(several if "WORLD_SIZE" in os.environ else {}),
    )


class ProfileSteps(TrainerCallback):
    """Three steps of this rank in one trace, with its clock record inside."""

    def __init__(self, clock: RankClockCallback, path: Path) -> None:
        self._clock, self._path = clock, path
        self._profile: ClockedProfile | None = None

    def on_train_begin(self, args, state, control, **_) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._profile = ClockedProfile(  # (5)
            self._clock.clock,
            record_shapes=True,
            schedule=torch.profiler.schedule(wait=state.max_steps // 2, warmup=1, active=3, repeat=1),
            on_trace_ready=lambda profile: profile.export_chrome_trace(str(self._path)),
        )
        self._profile.start()

    def on_step_end(self, args, state, control, **_) -> None:
        self._profile.step()

    def on_train_end(self, args, state, control, **_) -> None:
        self._profile.stop()


class ComesLate(TrainerCallback):
    """A planted straggler."""

    def __init__(self, rank: int, late: str) -> None:
        who, span_ms = late.split(":")
        self._late_s = float(span_ms) / 1e3 if rank == int(who) else 0.0

    def on_step_begin(self, args, state, control, **_) -> None:
        time.sleep(self._late_s)


# ---- what is made here, so that nothing is downloaded ----


def sentences(count: int, *, seed: int) -> list[str]:
    """Small sums in words: enough to see the loss go down."""
    chance = random.Random(seed)
    pairs = ((chance.randrange(100), chance.randrange(100)) for _ in range(count))
    return [f"question: what is {one} plus {two}? answer: it is {one + two}." for one, two in pairs]


def make_base(folder: Path) -> None:
    """A Llama of 3 million parameters with a byte-level BPE tokenizer of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(sentences(4000, seed=2), vocab_size=512, special_tokens=["<s>", "</s>", "<pad>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        intermediate_size=352,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
