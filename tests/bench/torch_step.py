"""One training step (forward + backward + AdamW) of transformers' Muse Glimmer at muse_glimmer_tiny's sizes, on the CPU in f32.
Needs pip's torch and transformers >= 5.15. Prints one JSON line; with --serve, one for every line that it reads.

    python3 torch_step.py --threads 2 --steps 20 --attention sdpa [--compile]"""
import argparse
import json
import resource
import statistics
import sys
import time

import torch
import transformers
from transformers import MuseGlimmerConfig, MuseGlimmerForConditionalGeneration


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def build(attention):
    """The text model of models/muse_glimmer_tiny.toml; the smallest vision tower there is, which no step touches."""
    text = dict(vocab_size=256, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8,
                num_key_value_heads=2, head_dim=32, sliding_window=64, max_position_embeddings=2048, output_multiplier=1.0,
                final_logit_softcapping=20.0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                pad_token_id=None, bos_token_id=None, eos_token_id=None)
    vision = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, patch_size=4,
                  pos_emb_height=4, pos_emb_width=4, max_position_embeddings=16, merge_size=2, layer_types=["full_attention"],
                  rope_parameters={"rope_type": "axial", "rope_theta": 10000.0})
    config = MuseGlimmerConfig(text_config=text, vision_config=vision, image_token_id=254, video_token_id=255, out_hidden_size=128,
                               projector_hidden_size=32)
    config._attn_implementation = attention
    torch.manual_seed(1)
    model = MuseGlimmerForConditionalGeneration(config).float().train()
    for name, parameter in model.named_parameters():
        if ".vision_" in name:
            parameter.requires_grad_(False)
    return model


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=512)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--warm-up", type=int, default=3)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    options.add_argument("--compile", action="store_true")
    options.add_argument("--serve", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    start_bytes = resident_bytes()  # with the libraries loaded: they do not count
    model = build(given.attention)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, 250, (1, given.tokens), generator=torch.Generator().manual_seed(1))
    forward = torch.compile(model) if given.compile else model

    def step():
        loss = forward(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    first_loss = step()
    for _ in range(given.warm_up - 1):
        step()

    def measure():
        seconds = []
        for _ in range(given.steps):
            start = time.perf_counter()
            loss = step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps({
            "median_seconds": statistics.median(seconds), "min_seconds": min(seconds),
            "peak_bytes": peak_bytes() - start_bytes, "start_bytes": start_bytes, "num_parameters": sum(p.numel() for p in trained),
            "first_loss": first_loss, "loss": loss, "threads": torch.get_num_threads(), "attention": given.attention,
            "compile": given.compile, "torch": torch.__version__, "transformers": transformers.__version__}), flush=True)

    if given.serve:
        for _ in sys.stdin:
            measure()
    else:
        measure()


main()
