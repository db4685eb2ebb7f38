#!/usr/bin/env python3
"""Sets the times of gpu_test's GpuAttention.ReleasedSizes beside torch's attention, in one run on one card.

    python3 tests/gpu/attention_peers.py build/gpu/tests/gpu_test

32 query and 2 key-value heads of 128, bf16, causal. TFLOP/s count 4 (forward) and 10 (backward) times 4096 per pair of query and key.
"""
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def times(run, operands, repetitions):
    """Median milliseconds of run() and of its backward pass."""
    forward, backward = [], []
    start = time.monotonic()
    while len(forward) < repetitions:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        events[0].record()
        out = run()
        events[1].record()
        ct = torch.randn_like(out)
        events[2].record()
        out.backward(ct)
        events[3].record()
        torch.cuda.synchronize()
        for each in operands:
            each.grad = None
        if time.monotonic() - start > 1:  # compiled, and the clocks are those under load
            forward.append(events[0].elapsed_time(events[1]))
            backward.append(events[2].elapsed_time(events[3]))
    return statistics.median(forward), statistics.median(backward)


def peers(rows, window, documents, repetitions):
    q = torch.randn(1, 32, rows, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(1, 2, rows, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    if window == 0 and documents == 1:
        for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION)):
            with sdpa_kernel(backend):
                yield name, times(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), (q, k, v), repetitions)
        return
    length = rows // documents

    def visible(b, h, i, j):
        seen = (i >= j) & (i // length == j // length)
        return seen & (i - j < window) if window else seen

    mask = create_block_mask(visible, None, None, rows, rows, device="cuda")
    flex = torch.compile(flex_attention)
    yield "Flex", times(lambda: flex(q, k, v, block_mask=mask, enable_gqa=True), (q, k, v), repetitions)


def main():
    test = subprocess.run([sys.argv[1], "--gtest_filter=GpuAttention.ReleasedSizes"], capture_output=True, text=True)
    lines = [line.split("|") for line in test.stdout.splitlines() if line.startswith("attention-time|")]
    if test.returncode != 0 or not lines:
        print(test.stdout, test.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"{'attention':20} {'':6} {'fwd ms':>8} {'TFLOP/s':>8} {'bwd ms':>8} {'TFLOP/s':>8}   ours / peer: fwd, bwd")
    for _, name, forward, backward, pairs in lines:
        ours = float(forward), float(backward)
        flops = 4096 * float(pairs)
        rows = 32768 if "32k" in name else 8192

        def row(who, ms, ratios=""):
            print(f"{name:20} {who:6} {ms[0]:8.3f} {4 * flops / ms[0] * 1e-9:8.0f} {ms[1]:8.3f} {10 * flops / ms[1] * 1e-9:8.0f}   {ratios}", flush=True)

        row("glim", ours)
        for peer, ms in peers(rows, 2048 if "window" in name else 0, 4 if "documents" in name else 1, 5 if rows > 8192 else 20):
            row(peer, ms, f"{ms[0] / ours[0]:.2f}, {ms[1] / ours[1]:.2f} x its speed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
