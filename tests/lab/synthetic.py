"""Records as a run would write them, with numbers of the test's own choice instead of training."""

from __future__ import annotations

from gasam.lab.families.family import VERSION
from gasam.lab.methods import APPENDIX
from gasam.lab.record import Record
from gasam.lab.tasks import find
from gasam.lab.training import plan

STEPS = 100
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def record(
    task, method="baseline", test=80.0, *, size="small", seed=1, settings=None, walk=None, source=None, **changes
):
    """`test` None is a run that diverged in its second epoch."""
    walks = "paper" if "@" not in size and task in APPENDIX.get(method, ()) else None
    made = plan.make(task, method, size, seed, settings=settings, walk=walk, walks=walks)
    epochs = made.settings.epochs if test is not None else 2
    walk = made.walk
    passes = [
        STEPS * (1 + walk.steps / walk.every if walk.size and epoch >= walk.start_epoch else 1)
        for epoch in range(1, epochs + 1)
    ]
    curve = [
        {
            "epoch": epoch,
            "loss": 1 / epoch,
            "valid": (test or 50) * (1 - 0.3 / epoch),
            "gradient_evaluations": int(sum(passes[:epoch])),
            "seconds": 1.5 * epoch,
        }
        for epoch in range(1, epochs + 1)
    ]
    if test is None:
        curve[-1] |= {"loss": None, "valid": None}
    values = {
        "name": made.name(f"{task}-data"),
        "method": method,
        "seed": seed,
        **made.config(),
        "metric": find(task).family.metric,
        "valid": test,
        "test": test,
        "gradient_evaluations": int(sum(passes)),
        "updates": STEPS * epochs,
        "seconds": sum(passes) / STEPS,
        "best_epoch": epochs,
        "diverged": test is None,
        "commit": COMMIT,
        "dirty": False,
        "data": {"hash": f"{task}-data", "encoding": VERSION, "notes": []},
        "parameters": 1000,
        "machine": {"device": "cpu", "threads": 1, "platform": "x86_64"},
        "curve": curve,
    }
    if source is not None:
        values["walk"]["source"] = source
    changes["data"] = values["data"] | changes.get("data", {})
    return Record.model_validate(values | changes)


def records_of(task, scores, **options):
    """A record for each method and seed: `scores` holds the methods' test results in the order of seeds 1, 2, ..."""
    return [
        record(task, method, test, seed=seed, **options)
        for method, tests in scores.items()
        for seed, test in enumerate(tests, 1)
    ]
