"""First use: what changes when a user adds gasam to an ordinary training program and tunes nothing.

Eleven small training programs run with plain training, with `SharpBackward(model)` and with other perturbations.

    python -m benchmarks.first_use run       # train; finished runs are skipped
    python -m benchmarks.first_use table     # the results on the test split, as Markdown
    python -m benchmarks.first_use guide     # write this table into docs/guide.md
    python -m benchmarks.first_use choose    # the variants compared on the validation split

The protocol was fixed before any result on test data was read:

- The default is chosen on validation data, with seeds 11, 12 and 13, from budgets 0.1 and 0.3, caps 0.01 and 0.02 and
  the norms 2 and inf. It must not be worse than plain training by more than one standard deviation in any set-up; of
  those that pass, the one that is better in most set-ups is taken.
- The final table has seeds 1, 2 and 3 and the test split, at the epoch that is best on validation.
- Plain training runs for twice the epochs. Its first half is the comparison at equal epochs. At equal cost it may use
  as many passes as the walk took, and choose its best epoch among them.
"""
