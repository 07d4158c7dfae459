"""`clearhead evaluate --dtype int8` measures what 8-bit weights cost."""

import json

from support.command_line import output


def test_int8_weights_change_perplexity_by_less_than_2_percent(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("A man is walking his dog.\nI don't know what to say.\nTom bought a new car last week.\n" * 5)
    found = {}
    for dtype in ("float32", "int8"):
        answer = output("evaluate", "everyday", text, "--dtype", dtype, "--device", "cpu", "--json")
        found[dtype] = json.loads(answer)["perplexity"]
    assert found["int8"] != found["float32"]
    assert abs(found["int8"] / found["float32"] - 1) < 0.02
