"""`python -m gasam.doctor`: checks the walk on your machine and device in under a minute, with torch alone.

It runs the walk in every floating-point type, compares it with the float64 reference, and checks that the weights are
restored bit for bit, that no step synchronises with the host, and what the walk costs. Types that may crash the process
are checked in a process of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

import gasam
from gasam.doctor_checks import FAILED, TYPES, Finding, cost, guarded, of_type, synchronisation

ILLEGAL_INSTRUCTION_CURE = (
    "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before Python starts, because this processor announces "
    "instructions that it does not run; if that does not help, set AVX2"
)


def examine(device: str, report: Callable[[Finding], object] = lambda finding: None) -> dict[str, Any]:
    """Run all checks.

    Args:
        device: For example "cpu" or "cuda:0".
        report: Called with each finding as soon as it is known.
    """
    findings = list[Finding]()

    def add(finding: Finding) -> None:
        findings.append(finding)
        report(finding)

    for name in TYPES:
        for finding in of_type(name, device) if name in ("float64", "float32") else in_own_process(name, device):
            add(finding)
    add(guarded("no synchronisation", lambda: synchronisation(device)))
    add(guarded("time", lambda: cost(device)))
    return {
        "machine": machine(device),
        "findings": [finding._asdict() for finding in findings],
        "ok": all(finding.status != FAILED for finding in findings),
    }


def machine(device: str) -> dict[str, str]:
    """Versions, the device and its instruction set."""
    kind = torch.device(device).type
    name = torch.cuda.get_device_name(device) if kind == "cuda" else platform.processor() or platform.machine()
    return {
        "gasam": gasam.__version__,
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "system": platform.platform(),
        "device": f"{device} ({name})",
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "not set"),
    }


def in_own_process(name: str, device: str) -> list[Finding]:
    """The checks of a type in a process of its own, so that its crash is reported."""
    command = [sys.executable, "-m", "gasam.doctor", "--only-type", name, "--device", device, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        return [Finding(f"{name} walk", FAILED, "did not end within 120 seconds")]
    if done.returncode < 0:
        number = -done.returncode
        what = "illegal instruction" if number == signal.SIGILL else signal.strsignal(number) or f"signal {number}"
        cure = f": {ILLEGAL_INSTRUCTION_CURE}" if number == signal.SIGILL else ""
        return [Finding(f"{name} walk", FAILED, f"crashed: {what}{cure}")]
    try:
        return [Finding(**each) for each in json.loads(done.stdout)]
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Finding(f"{name} walk", FAILED, f"ended with exit code {done.returncode}: {last}")]


def usual_device() -> str:
    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None else str(found)


def refusal(device: str) -> str | None:
    """Why this device can't be used, as a sentence; None if it can."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as refused:
        reason = (str(refused).splitlines() or [""])[0]
        return f"the device {device!r} can't be used ({reason}): give one of this machine, such as {usual_device()!r}"
    return None


def lines(machine_: dict[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in machine_.items())


def run(device: str, as_json: bool) -> int:
    """Examine the device, print the findings, and return the exit code: 0 if nothing failed, else 1."""
    if not as_json:
        print(lines(machine(device)), flush=True)
    found = examine(device, lambda each: None if as_json else print(_line(each), flush=True))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print("everything is fine" if found["ok"] else "something failed: report it with the whole output above")
    return 0 if found["ok"] else 1


def _line(finding: Finding) -> str:
    return f"{finding.status:<8} {finding.check}: {finding.detail}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gasam.doctor", description="Check gasam on this machine.")
    parser.add_argument("--device", default=usual_device(), help="the device to check (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--only-type", choices=TYPES, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if refused := refusal(options.device):
        parser.error(refused)
    if options.only_type:
        print(json.dumps([finding._asdict() for finding in of_type(options.only_type, options.device)]))
        return 0
    return run(options.device, options.json)


if __name__ == "__main__":
    sys.exit(main())
