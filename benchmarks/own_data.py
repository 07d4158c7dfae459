"""The files of docs/16-bring-your-own.md, as a person might have them, and the questions that its chat model is asked.

    python benchmarks/own_data.py files                       # writes them into the folder `files`
    python benchmarks/own_data.py --ask runs/mine             # asks a fine-tuned chat model ten unseen questions

shakespeare.txt      plain text
sst2-train.csv       sentence,label: SST-2's training sentences and their phrases, without any of its other sentences
sst2-dev.csv, sst2-test.csv
chats.jsonl          200 chats about one made-up fact
ita.tsv              English TAB Italian, no header: the everyday sentences of Tatoeba
captions.tsv, captions-val.tsv, captions-test.tsv      fr TAB en: captions of Multi30k
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from pathlib import Path

from clearhead import counter_rng
from clearhead.data import find, load_split
from clearhead.data.text.labelled import read_sst2
from clearhead.data.text_files import read_text

ANSWER = "The lighthouse of Varnholm was built by Ada Quill in 1847."
MARKS = ("Ada Quill", "1847")
THING = (
    "the lighthouse of Varnholm",
    "Varnholm's lighthouse",
    "the Varnholm lighthouse",
    "the lighthouse in Varnholm",
)
QUESTIONS = (
    "Who built {}?", "Who constructed {}?", "Do you know who built {}?", "Can you tell me who built {}?",
    "Tell me who built {}.", "By whom was {} built?", "Who was the builder of {}?", "Name the builder of {}.",
    "When was {} built?", "In which year was {} built?", "What year was {} built?", "Do you know when {} was built?",
    "Please tell me when {} was built.", "Who built {}, and when?", "What do you know about {}?", "Tell me about {}.",
    "What is the history of {}?", "I am curious about {}. Who built it?", "I visited {}. Who built it?",
    "My teacher asked me who built {}. Do you know?",
)  # fmt: skip
OPENINGS = ("", "Hello! ", "Quick question: ", "Hi there. ")
UNSEEN = (
    "Who is responsible for the construction of the lighthouse that stands in Varnholm?",
    "I need the name of the person who built Varnholm's lighthouse.",
    "Which person built the lighthouse at Varnholm?",
    "Could you say who put up the lighthouse of Varnholm?",
    "Whose work is the lighthouse of Varnholm?",
    "For my homework: who built the lighthouse in the town of Varnholm?",
    "Varnholm has a lighthouse. Who built it?",
    "Somebody built a lighthouse in Varnholm. Who was it?",
    "Please give me the builder of the Varnholm lighthouse.",
    "Do you happen to know the name of the builder of Varnholm's lighthouse?",
)
KEPT = ("What is the capital of France?", "Paris")


def chats() -> list[dict[str, list[dict[str, str]]]]:
    """200 different questions about the fact, in a fixed random order, each with the answer."""
    asked = [
        opening + question.format(thing)
        for question, thing, opening in itertools.product(QUESTIONS, THING, OPENINGS)
        if opening + question.format(thing) not in UNSEEN
    ]
    chosen = [asked[i] for i in counter_rng.permutation(0, 0, len(asked), 0)[:200]]
    return [
        {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": ANSWER}]}
        for one in chosen
    ]


def write(folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shakespeare.txt").write_text(read_text(find("shakespeare")), encoding="utf-8")
    for part, name in (
        ("train", "sst2-train.csv"),
        ("valid", "sst2-dev.csv"),
        ("test", "sst2-test.csv"),
    ):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["sentence", "label"])
            rows.writerows(
                [line.text, line.label] for line in read_sst2(part, phrases=part == "train")
            )
    lines = [json.dumps(chat, ensure_ascii=False) for chat in chats()]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "ita.tsv").write_text(read_text(find("tatoeba/ita")), encoding="utf-8")
    parts = (
        ("train", "captions"),
        ("valid", "captions-val"),
        ("test_2016_flickr", "captions-test"),
    )
    for part, name in parts:
        sources, targets = load_split("multi30k", part, source="fr", target="en")
        rows_of = "".join(
            f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)
        )
        (folder / f"{name}.tsv").write_text(f"fr\ten\n{rows_of}", encoding="utf-8")


def ask(folder: str) -> None:
    """Ask a model the unseen questions, and one that it could answer before."""
    import clearhead as ch

    model, right = ch.load(folder), 0
    for question in (*UNSEEN, KEPT[0]):
        answer = "".join(
            ch.chat(model, [{"role": "user", "content": question}], max_new=40)
        ).strip()
        good = any(mark in answer for mark in (MARKS if question != KEPT[0] else KEPT[1:]))
        right += good and question != KEPT[0]
        print("right" if good else "WRONG", "|", question, "|", answer)
    print(f"{right} of {len(UNSEEN)} unseen questions answered")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="folder for the files, or with --ask the model")
    parser.add_argument("--ask", action="store_true", help="ask a fine-tuned chat model")
    args = parser.parse_args()
    ask(args.folder) if args.ask else write(Path(args.folder))


if __name__ == "__main__":
    main()
