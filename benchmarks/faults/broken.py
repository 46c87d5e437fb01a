"""Broken inputs, drawn from a seed: data files, records, run folders, checkpoints, journals, arguments, task files."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

ROWS = "".join(f"row {i} of a small table,{'yes' if i % 2 else 'no'}\n" for i in range(20))
TEXTS = {
    "a.csv": f"text,label\n{ROWS}",
    "a.tsv": f"text\tlabel\n{ROWS}".replace(",", "\t"),
    "a.jsonl": "".join(json.dumps({"text": f"row {i}", "label": i % 2}) + "\n" for i in range(20)),
    "a.txt": "".join(f"line {i} of a short text\n" for i in range(20)),
}
TASK = """
import torch
EPOCHS = 1
def model(): return torch.nn.Linear(2, 2)
def data(split): return [(torch.ones(2) * i, i % 2) for i in range(8)]
def loss(model, batch): return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
def metric(model, data): return 0.5
"""
WRONG: tuple[Any, ...] = (None, -1, "x", [], {}, [{}], True, 1e308, "\ud800", 0, "../../elsewhere")
OUT = "out"


@dataclass(frozen=True)
class Case:
    """A broken input: it is written to an empty folder, then a command that reads it is run there.

    Args:
        kind: The kind of input.
        name: What is broken.
        write: Writes the files into the folder.
        arguments: The command.
        may_be_valid: Whether a random change can give a valid input.
    """

    kind: str
    name: str
    write: Callable[[Path], None]
    arguments: tuple[object, ...]
    may_be_valid: bool = True


def damaged(data: bytes, chosen: random.Random) -> tuple[str, bytes]:
    """Bytes with one random damage, and its name."""
    at = chosen.randrange(len(data))
    lines = data.split(b"\n")
    some = chosen.randrange(len(lines))
    kinds: dict[str, Callable[[], bytes]] = {
        "cut": lambda: data[:at],
        "empty": lambda: b"",
        "flipped bit": lambda: data[:at] + bytes([data[at] ^ (1 << chosen.randrange(8))]) + data[at + 1 :],
        "zeros": lambda: data[:at] + b"\0" * 40 + data[at + 40 :],
        "noise": lambda: data[:at] + chosen.randbytes(30) + data[at:],
        "all noise": lambda: chosen.randbytes(200),
        "quote": lambda: data[:at] + b'"' + data[at:],
        "UTF-16": lambda: data.decode("utf-8", "replace").encode("utf-16"),
        "Latin-1": lambda: data[:at] + b"caf\xe9" + data[at:],
        "line lost": lambda: b"\n".join(lines[:some] + lines[some + 1 :]),
        "first line only": lambda: lines[0],
        "blank lines": lambda: b"\n" * 30,
        "carriage returns": lambda: data.replace(b"\n", b"\r"),
        "very long": lambda: data[:at] + b"x" * 300_000 + data[at:],
        "deep JSON": lambda: b"[" * 100_000,
    }
    name = chosen.choice(list(kinds))
    return name, kinds[name]()


def damaged_json(value: Any, chosen: random.Random) -> tuple[str, Any]:
    """A copy of a JSON value with one random place deleted or replaced, and the name of the damage."""
    copy = json.loads(json.dumps(value))
    place, path = copy, []
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = chosen.choice(list(keys))
        path.append(str(key))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or chosen.random() < 0.4:
            break
        place = inner
    if chosen.random() < 0.3:
        del place[key]
        return f"without {'.'.join(path)}", copy
    place[key] = chosen.choice(WRONG)
    return f"{'.'.join(path)} = {place[key]!a}", copy


def data_files(chosen: random.Random, count: int) -> Iterator[Case]:
    tasks = {"a.csv": "classify", "a.tsv": "classify", "a.jsonl": "classify", "a.txt": "lm"}
    for number in range(count):
        source = chosen.choice(list(TEXTS))
        how, content = damaged(TEXTS[source].encode(), chosen)
        form = chosen.choice(["plain", "plain", "gzip", "broken gzip", "pair"])
        name = source if form in ("plain", "pair") else f"{source}.gz"
        task = "translate" if form == "pair" else tasks[source]
        if form == "gzip":
            content = gzip.compress(content, mtime=0)
        if form == "broken gzip":
            how, content = damaged(gzip.compress(TEXTS[source].encode(), mtime=0), chosen)

        def write(folder: Path, name: str = name, content: bytes = content, source: str = source) -> None:
            (folder / name).write_bytes(content)
            (folder / "good.txt").write_text(TEXTS["a.txt"])

        given = f"{name},good.txt" if form == "pair" else name
        split = ("--valid", "--test")[number % 2] if form == "plain" and task == "classify" and number % 3 else None
        words = ("--train", given) if split is None else ("--train", given, split, given)
        yield Case("data files", f"{task} {form} {how}", write, ("train", task, *words))


def stored_files(folder: Path, name: str) -> dict[str, Path]:
    """The folder of a finished command, and the record, the folder and the files of its run."""
    out = folder / "warm" / name
    record = next(out.glob("*.json"))
    return {"out": out, "record": record, "run": record.with_suffix("")}


def run_files(folder: Path, chosen: random.Random, count: int) -> Iterator[Case]:
    """Damaged records and folders of runs, read by the commands that need them."""
    for _ in range(count):
        made = stored_files(folder, chosen.choice(["digits", "language"]))
        run = made["run"].name
        place = chosen.choice([f"{run}.json", f"{run}.json", *(f"{run}/{each}" for each in
                               ("run.json", "encoding.json", "model.safetensors"))])  # fmt: skip
        how, content = damaged((made["out"] / place).read_bytes(), chosen)
        if place.endswith(".json") and chosen.random() < 0.7:
            how, value = damaged_json(json.loads((made["out"] / place).read_bytes()), chosen)
            content = json.dumps(value).encode()
        whole = place == f"{run}.json"
        record = f"runs/{run}.json"
        readers: list[tuple[object, ...]] = [("predict", record, "in.txt", "--cpu")]
        if whole:
            readers += [("results", "runs"), ("runs", "runs"), ("report", "runs", "--html", f"{OUT}/page.html"),
                        ("export", "runs", "--out", OUT), ("sharpness", record, "--cpu", "--rows", 8, "--out", OUT),
                        ("reproduce", "figure5", "--out", "runs"), ("results", "runs", "--json"),
                        ("runs", "runs", "--best", "--csv")]  # fmt: skip

        def write(place_of: Path, source: Path = made["out"], name: str = place, data: bytes = content) -> None:
            shutil.copytree(source, place_of / "runs")
            (place_of / "runs" / name).write_bytes(data)
            (place_of / "in.txt").write_text("the quick fox\n" + " ".join(["7"] * 64) + "\n")

        yield Case("records" if whole else "run folders", f"{place.rpartition('/')[2]} {how}", write,
                   chosen.choice(readers[1:] if whole and chosen.random() < 0.8 else readers))  # fmt: skip


class Bomb:
    """Unpickling it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('bomb went off', 'w').close()",)


def checkpoints(folder: Path, chosen: random.Random, count: int) -> Iterator[Case]:
    made = stored_files(folder, "digits")
    name = made["run"].name
    good = BytesIO()
    torch.save({"model": {"weight": torch.ones(3)}, "optimizer": {}, "progress": {"epoch": 1}}, good)
    for number in range(count):
        value = chosen.choice([Bomb(), {"model": Bomb()}, [], {}, {"model": {}}, {"progress": {"epoch": -1}}, 7,
                               {"model": torch.ones(2), "optimizer": {}, "progress": {}}])  # fmt: skip
        stream = BytesIO()
        how = f"{type(value).__name__} of torch.save"
        torch.save(value, stream)
        content = stream.getvalue()
        if number % 3 == 0:
            how, content = damaged(good.getvalue(), chosen)
        if number % 5 == 0:
            how, content = "pickle", pickle.dumps(Bomb() if number % 2 else value)

        def write(place: Path, data: bytes = content) -> None:
            (place / OUT / name).mkdir(parents=True)
            (place / OUT / name / "last.pt").write_bytes(data)

        yield Case("checkpoints", how, write, ("digits",), may_be_valid=False)


def journals(folder: Path, chosen: random.Random, count: int) -> Iterator[Case]:
    source = folder / "warm" / "search"
    files = [file for pattern in ("tuning/*.json", "tuning/tries/*/outcome.json") for file in source.glob(pattern)]
    for _ in range(count):
        file = chosen.choice(files)
        how, content = damaged(file.read_bytes(), chosen)
        if chosen.random() < 0.7:
            how, value = damaged_json(json.loads(file.read_bytes()), chosen)
            content = json.dumps(value).encode()

        def write(place: Path, name: str = str(file.relative_to(source)), data: bytes = content) -> None:
            shutil.copytree(source, place / OUT)
            (place / OUT / name).write_bytes(data)

        yield Case("search journals", f"{file.name} {how}", write, chosen.choice([("search",), ("report", OUT)]))


def task_files(chosen: random.Random, count: int) -> Iterator[Case]:
    lines = TASK.strip().splitlines()
    for _ in range(count):
        at = chosen.randrange(1, len(lines))
        changes = {
            "without": [*lines[:at], *lines[at + 1 :]],
            "syntax": [*lines[:at], "def def", *lines[at:]],
            "raises": [*lines[:at], "raise RuntimeError('no')", *lines[at:]],
            "exits": [*lines[:at], "raise SystemExit(0)", *lines[at:]],
            "not a function": [*lines[:at], f"{chosen.choice(['model', 'loss', 'data', 'metric'])} = 3"],
            "returns nothing": [*lines, f"def {chosen.choice(['model', 'loss', 'data', 'metric'])}(*a): return None"],
            "raises later": [*lines, f"def {chosen.choice(['model', 'loss', 'data', 'metric'])}(*a): return 1 / 0"],
            "bad setting": [*lines, chosen.choice(["EPOCHS = -1", "BATCH = 'many'", "RATE = float('nan')"])],
        }
        how = chosen.choice(list(changes))
        text = "\n".join(changes[how]) + "\n"
        if chosen.random() < 0.2:
            how, data = damaged(TASK.encode(), chosen)
        else:
            data = text.encode()

        def write(place: Path, data: bytes = data) -> None:
            (place / "my_task.py").write_bytes(data)

        words = chosen.choice([("train", "my_task.py"), ("compare", "my_task.py", "--methods", "baseline")])
        yield Case("task files", f"{how} {at}", write, words)


COMMANDS = ("train", "compare", "predict", "reproduce", "results", "runs", "report", "tasks", "methods", "tune",
            "export", "sharpness", "landscape", "spectrum", "robustness", "data", "nonsense")  # fmt: skip
OPTIONS = ("--seed", "--size", "--epochs", "--set", "--method", "--methods", "--epsilon", "--norm", "--steps",
           "--scale", "--out", "--jobs", "--on", "--seeds", "--walk", "--trials", "--exponents", "--norms", "--cap",
           "--track", "--train", "--valid", "--delimiter", "--data-dir", "--rows", "--points", "--sort", "--html",
           "--to", "--walk-start", "--every", "--option", "--tolerance", "--quantity", "--batch", "--words",
           "--temperature", "--gpus-per-run", "--cpus-per-run", "--risk", "--task", "--unknown")  # fmt: skip
VALUES = ("", "-1", "0", "nan", "inf", "1e999", "x", "=", "a=b=c", "../..", "\x00", "café", "9" * 40, ",", "a,b",
          "batch=0", "batch=-1", "rate=nan", "ga-sam.epsilon=-1", "[", "{}", "null", "moon:1", "a.csv")  # fmt: skip


def arguments(chosen: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        command = chosen.choice(COMMANDS)
        first = chosen.choice(["digits", "digits", "classify", "chess", "", "a.csv", "nowhere", "my.py", "table1"])
        words: list[object] = [command, first]
        for option in chosen.sample(OPTIONS, k=chosen.randrange(1, 3)):
            words += [option, chosen.choice(VALUES).replace("\x00", "\\0")]

        def write(place: Path) -> None:
            (place / "a.csv").write_text(TEXTS["a.csv"])

        yield Case("arguments", " ".join(map(str, words)), write, tuple(words))
