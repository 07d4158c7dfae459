"""How fast translations are written on a CPU: Hugging Face's Marian and ours, the same weights, in one run.

    python benchmarks/translate.py                    # a base-sized Marian with random weights
    python benchmarks/translate.py --width 256 --depth 3 --new 16

Both write the same number of tokens for every sentence, so that neither is lucky with an early end: greedily and by 5
beams, one sentence and 32 at a time. Times are medians of interleaved rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import clearhead as ch
from clearhead.decode import search


def peer(width: int, depth: int, vocab: int) -> torch.nn.Module:
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    sizes = MarianConfig(
        vocab_size=vocab, decoder_vocab_size=vocab, d_model=width, encoder_layers=depth, decoder_layers=depth,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        max_position_embeddings=512, pad_token_id=vocab - 1, eos_token_id=0, decoder_start_token_id=vocab - 1,
        forced_eos_token_id=None, scale_embedding=True, activation_function="swish",
    )  # fmt: skip
    return MarianMTModel(sizes).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=58101)
    parser.add_argument("--source", type=int, default=24, help="tokens of a sentence")
    parser.add_argument("--new", type=int, default=24, help="tokens to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    theirs = peer(args.width, args.depth, args.vocab)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ready = ch.load(folder, device="cpu")
    ours, special = ready.model, ready.special
    rows = []
    for beams in (1, 5):
        for batch in (1, 32):
            torch.manual_seed(1)
            source = torch.randint(1, args.vocab - 1, (batch, args.source))
            lengths = torch.full((batch,), args.source)

            def their_way(source: torch.Tensor = source, beams: int = beams) -> torch.Tensor:
                return theirs.generate(
                    input_ids=source, attention_mask=torch.ones_like(source), num_beams=beams, do_sample=False,
                    min_new_tokens=args.new, max_new_tokens=args.new, length_penalty=1.0, early_stopping=False,
                )  # fmt: skip

            def our_way(source: torch.Tensor = source, lengths: torch.Tensor = lengths, beams: int = beams) -> list:
                inputs = {"source": source, "lengths": lengths}
                banned = [special.pad, *special.ends]
                return search(
                    ours, inputs, start=special.start, end=special.ends[0], beams=beams, limit=args.new, banned=banned
                )

            same = sum(tuple(a[1:].tolist()) == b[0].ids for a, b in zip(their_way(), our_way(), strict=True))
            times: dict[str, list[float]] = {"theirs": [], "ours": []}
            ways: dict[str, Callable[[], object]] = {"theirs": their_way, "ours": our_way}
            for _ in range(args.rounds):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - start)
            median = {name: statistics.median(found) for name, found in times.items()}
            rows.append(
                {"beams": beams, "batch": batch, **median, "faster": median["theirs"] / median["ours"], "same": same}
            )
            row = rows[-1]
            if not args.json:
                print(
                    f"beams {beams} batch {batch:2d}: transformers {row['theirs'] * 1e3:8.1f} ms, "
                    f"ours {row['ours'] * 1e3:8.1f} ms, {row['faster']:.2f}x; {same} of {batch} answers the same",
                    flush=True,
                )
    if args.json:
        print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
