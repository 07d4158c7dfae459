"""adapter_config.json of the PEFT library: which adapters are read, their ranks and scales."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import config
from .fill import WeightsError
from .huggingface import check_class

CONFIG = "adapter_config.json"
# Settings of PEFT that change what an adapter computes and that we do not support. Name: the value that does not.
REFUSED: dict[str, Any] = {
    "use_dora": False, "use_qalora": False, "lora_bias": False, "alora_invocation_tokens": None,
    "trainable_token_indices": None, "layer_replication": None, "target_parameters": None, "use_bdlora": None,
    "megatron_config": None, "arrow_config": None, "monteclora_config": None, "velora_config": None,
    "kasa_config": None,
}  # fmt: skip
# Initialisations after which the base model's weights differ from those of its folder.
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# PEFT's words for tasks that no family here has: how the name of such a class of transformers ends.
TASKS = {"TOKEN_CLS": "ForTokenClassification", "QUESTION_ANS": "ForQuestionAnswering"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The keys of adapter_config.json that we read, with PEFT's defaults."""

    peft_type: str = "LORA"
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    r: int = 8
    lora_alpha: int | float = 8
    lora_dropout: float = 0.0
    use_rslora: bool = False  # updates are scaled by alpha / sqrt(rank) instead of alpha / rank
    fan_in_fan_out: bool = False  # their matrices are transposed; A and B are not
    bias: str = "none"
    inference_mode: bool = True
    target_modules: list[str] | str | None = None
    modules_to_save: list[str] | None = None
    ensure_weight_tying: bool = False  # an embedding in modules_to_save stays that of the output layer, too
    rank_pattern: dict[str, int] = field(default_factory=dict)  # rank of modules whose names match
    alpha_pattern: dict[str, int | float] = field(default_factory=dict)

    def rank(self, module: str) -> int:
        """The rank of a module's update."""
        return _matching(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """The factor of a module's update."""
        rank = self.rank(module)
        return _matching(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def _matching(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that matches the end of a module's name, as in PEFT."""
    return next((x for key, x in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def read_settings(folder: Path) -> Settings:
    """The settings of a folder's adapters; raises for what we do not support."""
    table = config.load(folder / CONFIG)
    kind, task = table.get("peft_type"), table.get("task_type")
    if kind != "LORA":
        raise WeightsError(
            f"{table.place('peft_type')}peft_type is {kind!r}: expected LORA, the only kind that we read"
        )
    for name, harmless in REFUSED.items():
        if table.get(name, harmless) not in (harmless, None, [], {}):
            raise WeightsError(f"{table.place(name)}{name} is {table[name]!r}: such adapters are not supported")
    start = str(table.get("init_lora_weights"))
    if start.startswith(CHANGED_BASE):
        raise WeightsError(
            f"{table.place('init_lora_weights')}init_lora_weights is {start!r}, which changes the weights of the base "
            "model: expected adapters that PEFT has converted to plain LoRA (path_initial_model_for_weight_conversion)"
        )
    check_class(TASKS.get(task) if isinstance(task, str) else None, f"{table.place('task_type')}task_type {task!r}")
    mapping = table.get("auto_mapping")
    named = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    check_class(named, f"{table.place('auto_mapping')}base_model_class {named!r}")
    known = {f.name for f in fields(Settings)}
    given = table.without(*(name for name in table if name not in known or table[name] is None))
    settings = config.read(Settings, given)
    _check_patterns(settings, table)
    return settings


def _check_patterns(settings: Settings, table: config.Table) -> None:
    for name in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(settings, name):
            try:
                re.compile(pattern)
            except re.error as cause:
                raise WeightsError(
                    f"{table.place(name)}{name}: {pattern!r} is no regular expression ({cause})"
                ) from cause
    if min([settings.r, *settings.rank_pattern.values()]) < 1:
        raise WeightsError(
            f"{table.place('r')}r={settings.r}, rank_pattern={settings.rank_pattern}: expected 1 or more"
        )
