"""Speed and memory of the walk. `python -m benchmarks` measures, writes results.json and docs/performance.md."""
