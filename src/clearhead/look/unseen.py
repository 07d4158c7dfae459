"""What looked like attention in a foreign model and was not taken as such, and why attention was not seen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ..models import Model
from .explicit_call import AXES, UNMET
from .missing import listed

if TYPE_CHECKING:
    from .foreign import Wanted

HINTS = {  # what to do if no attention was seen, by the package of the model
    "timm": "; timm.layers.set_fused_attn(True, experimental=True), called before the model is made, lets more of its "
    "models call scaled_dot_product_attention",
}
HINT = "; attention that calls torch.nn.functional.scaled_dot_product_attention is always seen"
EAGER = (  # of a model of transformers with eager attention
    "; call it with output_attentions=True, or set this in its config, so that its modules return their weights"
)
NOT_RETURNED = "their queries are not the tokens that the module was called with"


@dataclass(frozen=True)
class Missed:
    """What was seen in a module and is not taken as attention."""

    what: str  # "a softmax of shape (2, 3, 7, 7) was seen"
    reason: str  # why it is not taken
    likely: bool  # it is probably attention


class Unseen:
    """What is known of attention that a watch or an edit did not see.

    Args:
        root: The model.
        wanted: What the watch or edit asks for.
        seen: The paths of modules with attention calls, in order; it grows.
    """

    def __init__(self, root: nn.Module, wanted: Wanted, seen: dict[str, None]) -> None:
        self.root, self.wanted, self.seen = root, wanted, seen
        self.missed: dict[str, Missed] = {}  # by path

    def add(self, path: str, miss: Missed) -> None:
        """Remember what was not taken in a module; what is probably attention comes first."""
        known = self.missed.get(path)
        if miss.likely or known is None or not known.likely:
            self.missed[path] = miss

    def why(self, patterns: Sequence[str] = ()) -> str:
        """Why attention was not seen where patterns expected it, and what to do."""
        named = {path: miss for path, miss in self.missed.items() if self.wanted.names(path, patterns)}
        if self.seen:
            return self._miss(named) if named else f"the attention of this model is in {listed(self.seen)}"
        configs = (getattr(module, "config", None) for module in self.root.modules())
        how = next((how for x in configs if isinstance(how := getattr(x, "_attn_implementation", None), str)), None)
        attends = any("att" in type(module).__name__.lower() for module in self.root.modules())
        if how == "eager" and not self.missed and not attends:  # as in a state-space model of transformers
            return f"this {_name(self.root)} has no attention: it took no softmax, and no module of it is an attention"
        if how not in (None, "sdpa", "eager"):
            return (
                f"this {_name(self.root)} computes attention by its implementation {how!r}, which neither "
                "calls scaled_dot_product_attention nor returns weights: load it with attn_implementation='sdpa', or "
                "with 'eager' if it refuses that"
            )
        missed = named or self.missed
        hint = HINTS.get(type(self.root).__module__.partition(".")[0], HINT)
        if how == "eager" and not any(miss.reason == NOT_RETURNED for miss in missed.values()):
            hint = EAGER
        if missed:
            return f"{self._miss(missed)}{hint}"
        return (
            f"this {_name(self.root)} called neither torch's scaled_dot_product_attention nor "
            f"nn.MultiheadAttention, took no softmax, and no module of it returned attention weights"
            f"{'' if how == 'eager' else hint}"
        )

    def partial(self, patterns: Collection[str]) -> str:
        """What was probably attention and not seen where patterns that did see some expected it; empty if nothing."""
        used = [pattern for pattern in patterns if pattern not in self.wanted.unused]
        found = {path: miss for path, miss in self.missed.items() if miss.likely and path not in self.seen}
        found = {path: miss for path, miss in found.items() if self.wanted.names(path, used)}
        return self._miss(found) if found else ""

    def _miss(self, missed: dict[str, Missed]) -> str:
        """A sentence about the first of what is not taken as attention, preferably one that has met values."""
        ranked = sorted(missed.items(), key=lambda item: (not item[1].likely, item[1].reason in (UNMET, AXES)))
        path, miss = ranked[0]
        where = f" in {path!r}" if path else ""
        others = len(missed) - 1
        more = f" (and in {others} other module{'s' if others > 1 else ''})" if others else ""
        return f"{miss.what}{where}{more} and not taken as attention: {miss.reason}"


def _name(root: nn.Module) -> str:
    """The class of a model, for messages; of one that was opened with transformers, its class there."""
    return root.name if isinstance(root, Model) else type(root).__name__
