"""export: a model as a new folder that Hugging Face's libraries open, with a model card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .. import __version__, config
from ..atomic_files import new_folder
from ..errors import InputError
from ..layers.lora import adapters
from .bundle import Bundle
from .fill import WeightsError
from .folder import find, load, save
from .huggingface import folder as huggingface
from .huggingface import sentence_transformers as sentence_folder
from .peft.load import foreign_layout
from .table import dtype_name

CARD = "README.md"
LISTED = 20  # classes that a model card names
# Their word for what a model does, by our capability; a model card has the first that a model has.
PIPELINES = {
    "generate": "text-generation", "translate": "translation", "caption": "image-to-text", "fill": "fill-mask",
    "classify": "text-classification", "embed": "feature-extraction",
}  # fmt: skip
# where it reads images
OF_IMAGES = {"classify": "image-classification", "embed": "image-feature-extraction"}


def export(model: str | Path | Bundle, folder: str | Path, *, apart: bool = False) -> Path:
    """Write a model as a new folder that Hugging Face's transformers opens, or PEFT; returns the folder.

    The folder has what their pipelines need: weights, tokenizer or image processor, special ids, chat template, names
    of classes; and a model card. It appears when it is complete, and nothing that exists is overwritten.

    Args:
        model: What `load` takes, such as a run folder; or a bundle.
        folder: A new or an empty folder.
        apart: Write only the adapters (LoRA) of a model that keeps them apart, in PEFT's layout; otherwise they are
            added to the weights.

    Raises:
        WeightsError: Their libraries have no such model; the message names the options that they do not have.
        InputError: The folder is not empty.

    Examples:
        >>> folder = export("everyday", tmp / "everyday")
        >>> sorted(path.name for path in folder.iterdir() if path.suffix != ".json")
        ['README.md', 'model.safetensors']
    """
    place = Path(folder)
    # written under a temporary name, so that the folder appears only when it is complete
    with new_folder(place) as temporary:
        # adapters stay apart only if they are written apart
        bundle = model if isinstance(model, Bundle) else load(model, "cpu", merge=not apart)
        if apart and not (bundle.base and adapters(bundle.model)):
            raise InputError(
                f"apart is for adapters that a training kept apart (finetune --apart), and this {bundle.name} has "
                "none: leave it out for the whole model"
            )
        # the base model must be one that PEFT can open, too
        if apart:
            check_exportable(bundle)
        save(bundle, temporary, layout="peft" if apart else "huggingface")
        write_card(bundle, temporary, place.resolve().name)
    return place


def check_exportable(bundle: Bundle) -> None:
    """Raise if no library of Hugging Face could open a model, or its adapters if it names their base model.

    The weights are not looked at: they may be on the meta device.
    """
    if bundle.base is None:
        huggingface.contents(bundle)
        return
    # adapters name their base model, which PEFT loads with transformers
    path, layout = find(bundle.base)
    if foreign_layout(layout) is None:
        raise WeightsError(
            f"the base model {path} is not in Hugging Face's layout, so that PEFT cannot open its adapters: expected "
            "the whole model, or a base model that `clearhead export` wrote"
        )


def write_card(bundle: Bundle, folder: Path, name: str) -> None:
    """Write a model card into an exported folder; its front matter is what the hub reads."""
    (folder / CARD).write_text("\n".join(_card(bundle, folder, name)) + "\n", encoding="utf-8")


def _card(bundle: Bundle, folder: Path, name: str) -> Iterator[str]:
    is_whole = (folder / "config.json").is_file()  # and not adapters
    library = "transformers" if is_whole else "peft"
    if sentence_folder.is_sentence_folder(folder):
        library = "sentence-transformers"
    yield from ("---", f"library_name: {library}")
    tasks = PIPELINES
    if bundle.reads == "images":
        # the same capability is another pipeline
        tasks = PIPELINES | OF_IMAGES
    # the first pipeline in the order of the dictionary: a model that generates may embed, too
    task = next((tasks[can] for can in tasks if can in bundle.can), None)
    if task is not None:
        yield f"pipeline_tag: {task}"
    yield from ("tags:", "- clearhead", "---", "", f"# {name}", "")
    what = f"Adapters (LoRA) of {Path(bundle.base or '').name}"
    if is_whole:
        # our writers name exactly one class of transformers
        (class_name,) = config.load(folder / "config.json")["architectures"]
        what = f"`transformers.{class_name}`"
    parameters = list(bundle.model.parameters())
    size = sum(p.numel() for p in parameters)
    yield f"{what}: {size:,} parameters in {dtype_name(parameters[0])}, written by clearhead {__version__}."
    if not is_whole and find(bundle.base or "")[1] == "gguf":
        yield from _gguf_base(Path(bundle.base or ""), name)
    facts = [f"- {fact}" for fact in _facts(bundle)]
    if facts:
        yield from ("", *facts)


def _gguf_base(base: Path, name: str) -> Iterator[str]:
    """How adapters are opened whose base model is a GGUF file, which PEFT cannot open itself."""
    yield from (
        "",
        f"The base model, `{base.name}`, is a GGUF file, which PEFT cannot open as `base_model_name_or_path`. Export "
        "it first, and put the adapters on it:",
        "",
        "```",
        f"clearhead export {base.name} {base.stem}",
        "```",
        "",
        "```python",
        "import peft, transformers",
        "",
        f'base = transformers.AutoModelForCausalLM.from_pretrained("{base.stem}")',
        f'model = peft.PeftModel.from_pretrained(base, "{name}")',
        "```",
    )


def _facts(bundle: Bundle) -> Iterator[str]:
    """What a reader of a model card should know about its inputs and outputs."""
    if bundle.labels is not None:
        more = len(bundle.labels) - LISTED
        rest = f", and {more} more" if more > 0 else ""
        yield f"classes: {', '.join(bundle.labels[:LISTED])}{rest}"
    if bundle.columns:
        uses = ", ".join(f"{name} ({use})" for use, name in bundle.columns.items())
        yield f"columns that it was trained on: {uses}"
    # where embeddings cut a text earlier than the context requires, that length counts
    longest = bundle.longest or bundle.max_tokens
    if bundle.tokens is not None and longest is not None:
        yield f"tokens that it reads at once: {longest}"
    if bundle.chat is not None:
        yield "a chat template"
