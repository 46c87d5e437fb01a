"""What a user can get wrong: exit code 2, one sentence, no traceback, and nothing written."""

import shlex
import subprocess
import sys

import pytest

from local_layout import sentence

CSV = "text,label\n" + "".join(f"{sentence(i)},{i % 2}\n" for i in range(20))
FILES = {
    "good.csv": CSV,
    "latin.csv": CSV.encode() + "caf\u00e9,1\n".encode("latin-1"),
    "torn.json": '{"task": "digits", ',
}
# What is given, and the start of what is told.
CASES = {
    "train chess": "task must be one of imdb, ptb, en-vi, de-en, mnist, digits,",
    "train digits --method magic": "method must be one of baseline, sam, asam, asam-filter, layer-sam,",
    "train digits --size huge": "size must be one of paper, small, tiny, got 'huge'",
    "train digits --seed -1": "seed must be a whole number from 0 to 2147483647, got -1",
    "train digits --epochs many": "--epochs must be a whole number, got 'many'; see `gasam train --help`",
    "train digits --epsilonn 1": "No such option: --epsilonn (Possible options: --epsilon, --json, --option); see",
    "train --method sam": "Missing argument 'TASK'; see `gasam train --help`",
    "learn digits": "No such command 'learn'; see `gasam --help`",
    "train digits --set depth=3": "there is no setting 'depth': there are epochs, batch,",
    "train digits --set batch": "--set must look like name=value, got 'batch'",
    "train digits --settings-from torn.json": "torn.json is not a file that `gasam tune` wrote: ",
    "train digits --method sam --norm x": "--norm must be a number, got 'x'",
    "train digits --track diary": "--track must be one of aim,",
    "train imdb --train good.csv": "imdb has its own data: --train, --valid and --test are only for classify, lm and",
    "train imdb --data-dir nowhere": "imdb needs imdb/train.jsonl.gz, which is not in nowhere: run `gasam",
    "train classify --train absent.csv": "absent.csv is not a file: check --train",
    "train classify --train latin.csv": "latin.csv, line 22: byte 0xe9 at position 4 is not UTF-8",
    "compare digits --seeds 0": "seeds must be a whole number >= 1, got 0",
    "compare digits --jobs 0": "--jobs must be a whole number >= 1, got 0",
    "compare digits --methods ,": "--methods must be one or more names separated by commas, got ','",
    "compare digits --walk epsilon=1": "--walk must look like METHOD.NAME=VALUE with METHOD one of baseline, sam,",
    "reproduce figure4 --walks paper": "--walks is for tables: leave it out for figure4",
    "report .": "torn.json is not a record: ",
    "data --get digits": "the data of 'digits' cannot be downloaded: name one of imdb, ptb,",
    "attack torn.json": "torn.json is not a finished run: ",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize("given", CASES)
def test_bad_input_is_told_in_one_sentence_and_nothing_is_written(command, files, tmp_path, given):
    sized = given.startswith(("train", "compare", "reproduce")) and "--size" not in given
    told = command(*shlex.split(given), *(["--size", "tiny"] if sized else [])).refused()
    assert told.replace(f"{tmp_path}/", "").startswith(CASES[given])
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()


HIDDEN = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "typer" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from gasam.lab.cli import main
main()
"""


def test_what_to_install_is_said_when_the_extra_is_missing():
    ended = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "gasam: the command needs typer: run `pip install 'gasam[lab]'`\n"
