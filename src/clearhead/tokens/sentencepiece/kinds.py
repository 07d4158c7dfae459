"""The kinds of pieces, by the numbers that a .spm file gives them."""

SPACE = "\u2581"  # how pieces write a space
# DEFINED: added by the user, never split or normalised
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = range(1, 7)
