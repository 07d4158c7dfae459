"""A folder with a small tokenizer and a ChatML template, as a chat checkpoint has them."""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = ["What is the capital of France? Paris.", "user assistant system\nYou are helpful.", "1 2 3, hello!"] * 9
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_folder(folder, template=CHATML):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT, trainer)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                "bos_token": "<|im_start|>", "clean_up_tokenization_spaces": False}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return folder


def spaced_folder(folder, kind, template):
    """A folder with a tokenizer that puts a space before a text: always, before the first part, or like Llama's."""
    special, text = ["<unk>", "<s>", "</s>"], ["user: Who is the king? assistant: The king is dead. Why? War."] * 9
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    scheme = "always" if kind == "prepend" else kind
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    if kind == "prepend":
        tokenizer.pre_tokenizer = None
        steps = [normalizers.Replace("\n", " "), normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def chat(*texts, system=None):
    """Messages of user and assistant in turn."""
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return [*([{"role": "system", "content": system}] if system else []), *messages]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
