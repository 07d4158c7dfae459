"""The words that configs use for the choices of this folder; each is written down once, here."""

from typing import Literal

Position = Literal["none", "sinusoid", "learned", "rotary", "alibi", "relative"]  # how token order is encoded
MLPKind = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu"]  # activation of the MLP
Activation = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh"]
Norm = Literal["layer", "rms", "none"]
Order = Literal["pre", "post"]  # norm before each sublayer, or after each residual addition
DotScore = Literal["dot", "scaled", "cosine"]  # scores that a fused kernel can compute
Projection = Literal["qkv", "q=k", "k=v", "q=k=v", "qk", "none"]  # which of queries, keys and values are projected
Rope = Literal["linear", "ntk", "yarn", "llama3"]  # how rotary positions are stretched to a longer context
