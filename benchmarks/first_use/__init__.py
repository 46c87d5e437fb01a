"""First use: what changes when a user adds gasam to an ordinary training program and tunes nothing.

Twelve small training programs run with plain training, with `SharpBackward(model)` and with other perturbations.

    python -m benchmarks.first_use run       # train; finished runs are skipped
    python -m benchmarks.first_use guide     # write the table of the results on the test split into docs/guide.md
    python -m benchmarks.first_use choose    # the variants compared on the validation split

How the numbers were made:

- The set-ups were developed on plain training with seeds 1 to 3, and test results of these were seen meanwhile. One
  set-up, the CNN with dropout, was replaced by the one without after two seeds of it had shown a loss; both are
  in the list now.
- The default was chosen on validation data, with seeds 11 to 13; `choose` prints what there is.
- The final table has seeds 4, 5 and 6, which nothing else has used, and the test split, at the epoch that is best on
  validation.
- Plain training runs for twice the epochs. Its first half is the comparison at equal epochs. At equal cost it may use
  as many passes as the walk took, and choose its best epoch among them.
"""
