"""The bugs of gasam that the campaigns found, for docs/reliability.md."""

# ruff: noqa: E501

BUGS = """## Bugs that the campaign found

All are fixed. The tests of the walk are in `tests/core/test_faults.py`, the others in `tests/lab/test_faults_runs.py` and `tests/lab/test_ray.py`.

| part | bug | fix |
|---|---|---|
| walk | A failure after the walk, in the schedule or in the warnings, left the new gradient in `.grad`, so a retry added it twice. | `.grad` is undone as well. |
| walk | A failure in the count of the schedule left half a step: the loss without the step, or the reverse. | The count is all or nothing. |
| walk | A failure between the step of `SharpnessAware`'s base optimizer and the count left the step uncounted. | The count is repeated. |
| walk | A failed allocation during the restore left a part of the weights displaced (found while reading the code for the campaign). | Everything is restored again. |
| walk | An interrupt just before `.grad` was undone left the gradients of a half-finished pass (found in the same way). | The undo is nested twice, like the restore. |
| processes | `reset_iter_state()` of FSDP2 in torch 2.13 keeps the gradient of a failed pass, and the next step adds it. This is not a bug of gasam: plain FSDP2 does the same. | [Frameworks](frameworks.md#when-a-process-fails) describes the cure, and the campaign uses it. |
| runs | A full disk gave a traceback of torch, without the reason. | One sentence with the path and the cure. |
| runs | A run killed just after its record was written left its checkpoint and temporary files forever. | The next command deletes them. |
| runs | A search killed while it wrote its journal left a temporary file forever (test in `tests/lab/test_tuning.py`). | The next search deletes it. |
| runs | A log that could not be written stopped the other runs of a comparison. | Only that log is missing. |
| runs | A signal while the command was starting gave a traceback. | One sentence, exit code 130. |
| runs | A second signal while the first one was handled gave a traceback. | Only the first one is handled. |
| runs | A second Ctrl-C inside `torch.save` could abort the process: torch wrote to the closed file in a destructor. | Signals wait until the file is written. |
| cluster | An interrupt of a job in a Ray cluster was lost if it came while the job wrote a checkpoint, because Ray's processes block signals (found by a test of the engine). | A delayed signal goes to its handler directly. |
| cluster | A job whose main thread waited for the driver lost its CPU to another job (found in the same way). | It waits in another thread. |
| cluster | A job that only waited for a node that died was reported as moved (found in the same way). | It goes on waiting, without a message. |
| inputs | A damaged checkpoint, or one that holds something else, gave a traceback. | It is refused in one sentence. |
| inputs | A damaged encoding of a stored model was not reported in one sentence. | One sentence that names the file and the field. |
| inputs | A table with carriage returns between its lines gave a traceback. | One sentence that names the line and the cure. |
| inputs | A sentence with more tokens than the model has positions gave a traceback. | One sentence that names the split and the limit. |
| inputs | A training text for translation with a word of 300,000 letters hung while subwords were learnt. | Words of more than 1,000 letters are left out of learning. |
| inputs | An `--out` that is a file was reported once for each run. | One sentence. |
| inputs | Half of a surrogate pair in a record or search journal gave a traceback. | The file is refused in one sentence. |
"""
