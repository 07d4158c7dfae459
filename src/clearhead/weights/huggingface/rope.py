"""The rotary positions of Hugging Face's config.json, to and from the options of our GPT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...models.gpt import Config
from ..fill import WeightsError

BASE = 10_000.0  # default of rope_theta
KINDS = ("default", "linear", "llama3")
# other angles for texts that are longer than those of the first training (Ding et al. 2024)
LONG = ("longrope", "su")


def read_rope(rope: Mapping[str, Any], context: int) -> dict[str, Any]:
    """Our options of rotary positions.

    Args:
        rope: The keys that `chosen_rope` returns, and rope_theta if that is beside them.
        context: Tokens that the model reads.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    options: dict[str, Any] = {"base": _number(rope, "rope_theta") or BASE}
    if kind == "default":
        return options
    if kind in LONG:
        raise InputError(
            f"rope_type={kind!r} has other angles for long texts than for short ones, which our GPT does not have: "
            "such a folder opens with transformers (pip install clearhead[transformers])"
        )
    if kind not in KINDS:
        raise InputError(f"rope_type={kind!r}: expected {', '.join(KINDS)}")
    if kind == "llama3":
        for name, usual in (("low_freq_factor", 1.0), ("high_freq_factor", 4.0)):
            if rope.get(name, usual) != usual:
                raise InputError(f"{name}={rope[name]}: expected {usual}")
        options["trained"] = int(_number(rope, "original_max_position_embeddings") or context)
    return options | {"scaling": kind, "factor": _number(rope, "factor") or 1.0}


def chosen_rope(scaling: Any, parameters: Any) -> Mapping[str, Any]:
    """The keys of rotary positions: those of rope_scaling, or if it has none, those of rope_parameters.

    A config.json may have both, as transformers writes rope_parameters and its users add rope_scaling; transformers
    itself then reads the latter only.
    """
    return next((rope for rope in (scaling, parameters) if isinstance(rope, Mapping) and rope), {})


def trained_length(words: Mapping[str, Any]) -> int | None:
    """The tokens up to which a model with other angles for longer texts has one set of them; None for other models.

    Args:
        words: The keys of config.json.
    """
    rope = chosen_rope(words.get("rope_scaling"), words.get("rope_parameters"))
    if rope.get("rope_type", rope.get("type")) not in LONG:
        return None
    sizes = (
        rope.get("original_max_position_embeddings"),
        words.get("original_max_position_embeddings"),
    )
    return next((size for size in sizes if type(size) is int), words.get("max_position_embeddings"))


def write_rope(c: Config) -> dict[str, Any]:
    """The keys of config.json for the rotary positions of our Config; older versions of their library read the last."""
    rope: dict[str, Any] = {"rope_theta": c.base, "rope_type": c.scaling or "default"}
    if c.scaling not in (None, *KINDS):
        raise WeightsError(f"scaling={c.scaling!r}: expected none, linear or llama3")
    if c.scaling is not None:
        rope["factor"] = c.factor
    if c.scaling == "llama3":
        rope |= {
            "original_max_position_embeddings": c.trained,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    return {
        "rope_parameters": rope,
        "rope_theta": c.base,
        **({} if c.scaling is None else {"rope_scaling": rope}),
    }


def _number(rope: Mapping[str, Any], name: str) -> float | None:
    """A value of rope_parameters, whose dictionary may hold anything."""
    value = rope.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{name}={value!r}: expected a number above 0")
    return float(value)
