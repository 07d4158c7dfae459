"""Event files, read back by TensorBoard itself."""

import math

import pytest

from clearhead.training.logs import EventFile, masked_crc32c


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


def test_the_checksum_is_crc32c():
    """RFC 3720, B.4: crc32c of 32 zero bytes is 8a9136aa; then the mask of a TFRecord."""
    crc = 0x8A9136AA
    assert masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorboard_reads_scalars(tmp_path):
    events = EventFile(tmp_path)
    events.scalars(0, {"loss": 2.5, "rate/läuft": 1e-3}, 100.25)
    events.scalars(300, {"loss": math.nan}, 101.0)
    events.scalars(2**40, {"loss": -1e300, "long": 1.0 / 3}, 102.0)
    events.flush()
    seen = read(tmp_path)
    assert [(e.step, e.wall_time) for e in seen["loss"]] == [(0, 100.25), (300, 101.0), (2**40, 102.0)]
    assert seen["loss"][0].value == 2.5
    assert math.isnan(seen["loss"][1].value)
    assert seen["loss"][2].value == -math.inf
    assert seen["rate/läuft"][0].value == pytest.approx(1e-3)
    assert seen["long"][0].value == pytest.approx(1 / 3)
    events.close()


def test_a_resumed_run_drops_the_steps_after_its_checkpoint(tmp_path):
    first = EventFile(tmp_path)
    for step in range(1, 11):
        first.scalars(step, {"loss": float(step)})
    first.close()
    again = EventFile(tmp_path, after=6)  # within the same second: its file must still be read after the first
    again.scalars(7, {"loss": 70.0})
    again.close()
    assert again.path.name > first.path.name
    assert [(e.step, e.value) for e in read(tmp_path)["loss"]] == [*((s, float(s)) for s in range(1, 7)), (7, 70.0)]


def test_a_partial_record_does_not_hide_earlier_ones(tmp_path):
    events = EventFile(tmp_path)
    events.scalars(1, {"loss": 1.0})
    events.scalars(2, {"loss": 2.0})
    events.close()
    events.path.write_bytes(events.path.read_bytes()[:-5])
    again = EventFile(tmp_path, after=1)
    again.scalars(2, {"loss": 2.0})
    again.close()
    assert [e.step for e in read(tmp_path)["loss"]] == [1, 2]
