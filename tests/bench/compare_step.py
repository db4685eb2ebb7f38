"""Measures training steps of glim (two builds) and of PyTorch (two settings) in turn, round by round, and prints a table. A ratio is
taken inside each round, so that a machine whose speed drifts changes both sides. See step.sh."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Torch:
    """torch_step.py, kept alive: building and compiling the model is not what is measured."""

    def __init__(self, given, *settings):
        command = [sys.executable, os.path.join(HERE, "torch_step.py"), "--serve", "--tokens", str(given.tokens), "--threads",
                   str(given.threads), "--steps", str(given.steps), *settings]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("torch_step.py ended")
        return json.loads(line)


class Glim:
    def __init__(self, given, program):
        self.command = [program, "bench", "step", "muse_glimmer_tiny", "--json", "--tokens", str(given.tokens), "--threads",
                        str(given.threads), "--steps", str(given.steps)]

    def measure(self):
        return json.loads(subprocess.run(self.command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--glim", required=True)
    options.add_argument("--glim-openblas", required=True)
    options.add_argument("--tokens", type=int, default=512)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--steps", type=int, default=20, help="per round")
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    runs = {"glim, Eigen": Glim(given, given.glim), "glim, OpenBLAS": Glim(given, given.glim_openblas),
            "PyTorch, sdpa": Torch(given, "--attention", "sdpa"),
            "PyTorch, sdpa, torch.compile": Torch(given, "--attention", "sdpa", "--compile")}
    results = {name: [] for name in runs}
    for index in range(given.rounds + 1):  # the first round warms up
        for name in list(runs):
            try:
                result = runs[name].measure()
            except (RuntimeError, BrokenPipeError) as error:
                print(f"{name}: left out ({error})", file=sys.stderr)
                del runs[name], results[name]
                continue
            if index > 0:
                results[name].append(result)
    peers = [name for name in runs if name.startswith("PyTorch")]
    best = min(peers, key=lambda name: statistics.median(r["median_seconds"] for r in results[name]))
    peer = results[best]
    print(f"{processor()}, {given.threads} threads, {given.tokens} tokens, f32, torch {peer[0]['torch']}, "
          f"transformers {peer[0]['transformers']}, {given.rounds} rounds of {given.steps} steps\n")
    print(f"| | median ms | least ms | tokens/s | speed / {best}: median (least to greatest round) | peak MiB above start |")
    print("|---|---|---|---|---|---|")
    for name, rounds in results.items():
        median = statistics.median(r["median_seconds"] for r in rounds)
        ratios = [p["median_seconds"] / r["median_seconds"] for p, r in zip(peer, rounds)]
        print(f"| {name} | {median * 1e3:.1f} | {min(r['min_seconds'] for r in rounds) * 1e3:.1f} | {given.tokens / median:.0f} | "
              f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | "
              f"{max(r['peak_bytes'] for r in rounds) / 2**20:.0f} |")


main()
