"""The words that configs use for the choices of this folder; each choice is listed once, here."""

from typing import Literal

Position = Literal["none", "sinusoid", "learned", "rotary", "alibi", "relative"]  # how token order is encoded
PatchPosition = Literal["none", "learned", "sincos2d"]  # how the place of an image patch is encoded
Join = Literal["add", "concatenate"]  # how position vectors are combined with tokens
Pairs = Literal["halves", "neighbours"]  # which columns make a pair: i with i + e/2, or 2i with 2i + 1
Rope = Literal["linear", "ntk", "yarn", "llama3"]  # how rotary positions are stretched to a longer context
DotScore = Literal["dot", "scaled", "cosine"]  # scores that a fused kernel can compute
Projection = Literal["qkv", "q=k", "k=v", "q=k=v", "qk", "none"]  # which of queries, keys and values are projected
MLPKind = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu", "geglu"]  # activation of the MLP
Activation = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh"]
Norm = Literal["layer", "rms", "rms_plus_one", "none"]
Order = Literal["pre", "post", "output", "both"]  # where a block has its norms (see block.py)
QKNorm = Literal["head", "width"]  # norm of queries and keys: of each head, or of all heads together
Cell = Literal["rnn", "gru", "lstm"]
Connection = Literal["plain", "dense", "residual"]  # how a layer of a Stack is connected to those before it
Shrink = Literal["middle", "first"]  # convolution of a bottleneck that has the stride: 3x3, or the first 1x1
ResidualKind = Literal["basic", "bottleneck"]  # convolutions of a residual block: two 3x3; or 1x1, 3x3 and 1x1
