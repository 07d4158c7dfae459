"""The allowed values of the config options of this folder; each list is written once, here."""

from typing import Literal

# how token order is encoded
Position = Literal["none", "sinusoid", "learned", "rotary", "alibi", "relative"]
PatchPosition = Literal["none", "learned", "sincos2d"]  # how the place of an image patch is encoded
Join = Literal["add", "concatenate"]  # how position vectors are combined with tokens
# which columns make a pair: i with i + e/2, or 2i with 2i + 1
Pairs = Literal["halves", "neighbours"]
# how rotary positions are stretched to a longer context
Rope = Literal["linear", "ntk", "yarn", "llama3"]
DotScore = Literal["dot", "scaled", "cosine"]  # scores that a fused kernel can compute
# which of queries, keys and values are projected
Projection = Literal["qkv", "q=k", "k=v", "q=k=v", "qk", "none"]
# activation of the MLP
MLPKind = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu", "geglu"]
Activation = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh"]
Norm = Literal["layer", "rms", "rms_plus_one", "none"]
Order = Literal["pre", "post", "output", "both"]  # where a block has its norms (see block.py)
# norm of queries and keys: of each head, or of all heads together
QKNorm = Literal["head", "width"]
Cell = Literal["rnn", "gru", "lstm"]
# how a layer of a Stack is connected to those before it
Connection = Literal["plain", "dense", "residual"]
# convolution of a bottleneck that has the stride: 3x3, or the first 1x1
Shrink = Literal["middle", "first"]
# convolutions of a residual block: two 3x3; or 1x1, 3x3 and 1x1
ResidualKind = Literal["basic", "bottleneck"]
