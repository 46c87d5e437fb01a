"""A GA-SAM step in Lightning, the Hugging Face Trainer and Accelerate against the same step in a plain loop."""

from __future__ import annotations

import logging
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import lightning
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments

from benchmarks.measure import ratio
from benchmarks.models import classifier, sentences
from gasam import SharpBackward, ga_sam
from gasam.integrations.lightning import SharpnessAwareModule
from gasam.integrations.transformers import SharpnessAwareTrainer

WALK = ga_sam(1e-6)
WARM_UP = 3
RATE = 1e-5

Batch = dict[str, Tensor]


class Relay:
    """Lets the runs of several threads do a step each in turn, so that a round's steps are moments apart.

    Every round has an order of its own: whose step comes after whose matters to the caches.
    """

    def __init__(self, runners: int) -> None:
        self.turn = threading.Condition()
        self.waiting = list(range(runners))
        self.done: list[int] = []
        self.random = random.Random(0)

    def wait(self, runner: int) -> None:
        with self.turn:
            self.turn.wait_for(lambda: self.waiting[0] == runner)

    def pass_on(self, runner: int, leave: bool = False) -> None:
        with self.turn:
            self.waiting.remove(runner)
            self.done += [] if leave else [runner]
            if not self.waiting:
                self.waiting, self.done = self.random.sample(self.done, len(self.done)), []
            self.turn.notify_all()


class Steps(Dataset[Batch]):
    """The same batch in every step; from one asking for it to the next is a step, in processor time of its thread."""

    def __init__(self, count: int, relay: Relay, runner: int) -> None:
        self.count, self.relay, self.runner = count, relay, runner
        self.batch = sentences()
        self.began: float | None = None
        self.seconds: list[float] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Batch:
        if self.began is not None:
            self.seconds.append(time.thread_time() - self.began)
            self.relay.pass_on(self.runner)
        self.relay.wait(self.runner)
        self.began = time.thread_time()
        return self.batch


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)


def plain_loop(model: nn.Module, data: DataLoader[Batch], sharp: bool) -> None:
    optimizer = adam(model)
    walk = SharpBackward(model.parameters(), WALK)
    for batch in data:
        optimizer.zero_grad()
        if sharp:
            walk(lambda: model(**batch).loss)  # noqa: B023
        else:
            model(**batch).loss.backward()
        optimizer.step()


def accelerated(model: nn.Module, data: DataLoader[Batch], sharp: bool) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, data = accelerator.prepare(model, adam(model), data)
    walk = SharpBackward(model.parameters(), WALK, backward=accelerator.backward)
    for batch in data:
        with accelerator.accumulate(model):
            if sharp:
                walk(lambda: model(**batch).loss)  # noqa: B023
            else:
                accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


class Plain(lightning.LightningModule):
    perturbation = WALK

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Batch) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return adam(self)


class Sharp(SharpnessAwareModule, Plain):
    pass


def in_lightning(model: nn.Module, data: DataLoader[Batch], sharp: bool) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=1,
    )  # fmt: skip
    trainer.fit((Sharp if sharp else Plain)(model), data)


def in_the_trainer(model: nn.Module, data: DataLoader[Batch], sharp: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, max_steps=len(data), learning_rate=RATE, max_grad_norm=0.0, use_cpu=True, report_to=[],
            disable_tqdm=True, save_strategy="no", logging_strategy="no", optim="adamw_torch_fused",
            lr_scheduler_type="constant",
        )  # fmt: skip
        extra = {"perturbation": WALK} if sharp else {}
        trainer = (SharpnessAwareTrainer if sharp else Trainer)(model=model, args=options, **extra)
        trainer.get_train_dataloader = lambda: data
        trainer.remove_callback(PrinterCallback)
        trainer.train()


WAYS: dict[str, Callable[[nn.Module, DataLoader[Batch], bool], None]] = {
    "loop": plain_loop,
    "again": plain_loop,
    "Lightning": in_lightning,
    "Trainer": in_the_trainer,
    "Accelerate": accelerated,
}


def relayed(rounds: int, sharp: bool, width: int) -> dict[str, list[float]]:
    """Seconds of each way's steps, round by round."""
    relay = Relay(len(WAYS))
    data = {way: Steps(WARM_UP + rounds + 1, relay, runner) for runner, way in enumerate(WAYS)}
    failures: list[BaseException] = []

    def train(way: str) -> None:
        torch.set_num_threads(1)
        relay.wait(data[way].runner)  # frameworks are set up one by one, for they share what is global
        try:
            torch.manual_seed(0)
            WAYS[way](classifier(width), DataLoader(data[way], batch_size=None), sharp)
        except BaseException as failure:  # told by the thread that waits
            failures.append(failure)
        finally:
            relay.pass_on(data[way].runner, leave=True)

    threads = [threading.Thread(target=train, args=(way,)) for way in WAYS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {way: steps.seconds[WARM_UP:] for way, steps in data.items()}


def run(rounds: int) -> dict[str, Any]:
    """At full width, and at a tenth of it, where a framework's milliseconds are not lost in the noise of the passes."""
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", module="torch.utils.data")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    full, narrow, plain = relayed(rounds, True, 256), relayed(25 * rounds, True, 24), relayed(25 * rounds, False, 24)
    step = 1e3 * statistics.median(full["loop"] + full["again"])
    return {
        "weights": sum(p.numel() for p in classifier().parameters()),
        "plain loop, ms": step,
        "frameworks": {
            way: {
                "over the loop": ratio(full, way, "loop"),
                "ms more": _more(narrow, way),
                "without GA-SAM, ms more": _more(plain, way),
                "1 + ms more over the loop": 1 + _more(narrow, way) / step,
            }
            for way in list(WAYS)[1:]
        },
    }


def _more(seconds: dict[str, list[float]], way: str) -> float:
    return 1e3 * statistics.median(a - b for a, b in zip(seconds[way], seconds["loop"], strict=True))
