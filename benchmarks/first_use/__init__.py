"""First use: what changes when a user adds gasam to an ordinary training program and tunes nothing.

Twelve small training programs run with plain training, with the recommended walk of each cost, and with one control.

    python -m benchmarks.first_use run           # train; finished runs are skipped
    python -m benchmarks.first_use guide         # write the tables of the results on the test split into the pages
    python -m benchmarks.first_use validation    # the same tables for the validation split

How the numbers are made:

- The set-ups were developed on plain training with seeds 1 to 3. Settings were chosen on validation data, with
  seed 11, in a prototype of the same formulas whose random directions were Gaussian.
- The tables have seeds 21, 22 and 23, which nothing else has used, and the test split, at the epoch that is best on
  validation at full precision. A variant that walks late chooses among the epochs that end with walks.
- Plain training runs for twice the epochs. Its first half is the comparison at equal epochs, the whole the one at equal
  cost of two passes.
- Rounded weights are those of the same epoch, each row symmetrically to its largest weight.
- "Better" and "worse" mean by more than one standard deviation of plain training over the seeds, paired by seed.
"""
