"""``make fuzz MINUTES=…``: rounds of all that is fuzzed, each with other examples, until the time is over; 1 at the first failure."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time


def main(minutes: float) -> int:
    until, rounds = time.monotonic() + minutes * 60, 0
    while time.monotonic() < until or not rounds:
        rounds += 1
        seed = secrets.randbelow(1 << 32)
        print(f"round {rounds}, seed {seed}", flush=True)
        argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/fuzz", f"--hypothesis-seed={seed}", "--hypothesis-show-statistics"]
        times = max(1, min(25, round(minutes * 2.5)))  # a round fits the time, about
        code = subprocess.run(argv, env={**os.environ, "FUZZ": "long", "FUZZ_TIMES": str(times)}, check=False).returncode
        if code:
            print(f"found something in round {rounds}: put what it prints into tests/fuzz/corpus, or as an @example")
            return 1
    print(f"{rounds} rounds in {minutes:g} minutes, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10))
