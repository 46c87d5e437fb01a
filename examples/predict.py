"""Train a text classifier on a table, load it from its folder alone, and use it."""

import shutil
import tempfile
from pathlib import Path

from gasam.lab import load
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

folder = Path(tempfile.mkdtemp())
table = folder / "reviews.csv"
praise, blame = ("a fine film", "good fun", "a joy"), ("a dull film", "bad jokes", "a bore")
rows = [f"{text},{label}\n" for text, label in zip(praise * 40 + blame * 40, ["+"] * 120 + ["-"] * 120, strict=True)]
table.write_text("text,label\n" + "".join(rows))
settings = {"epochs": 10, "learning_rate": 0.02}
run(make("classify", "ga-sam", "tiny", origin=Origin(train=str(table)), settings=settings), folder, cpu=True)
[record] = folder.glob("*.json")
table.unlink()
record.unlink()

texts = ["a fine joy", "a dull bore"]
trained = load(record)  # runs/NAME.json, or the folder runs/NAME
for text, found in zip(texts, trained.predict(texts), strict=True):
    print(f"{text}: {found['class']}, {found['probabilities']}")
print(trained.record.settings["epochs"], "epochs;", sum(p.numel() for p in trained.model.parameters()), "weights")

assert [found["class"] for found in trained.predict(texts)] == ["+", "-"]
assert trained.record.task == "classify"
shutil.rmtree(folder)
