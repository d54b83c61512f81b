"""Constants from parts: known ones come back from made-up parts that obey the model; what is not recorded is left out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cost_model.fused import GROUP_PARAMETERS, entry_groups, step_groups
from cost_model.gpu import Figure
from cost_model.head import Head
from cost_model.measurement import walk_row
from cost_model.parameters import resolve
from cost_model.part_fit import AGREEMENT, PHASE, TILES, part_figures
from cost_model.parts import split
from cost_model.placement import plan
from cost_model.predict import built_for
from cost_model.recorded import case_of_series
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, series_key, study_h200

TRUTH = {"epilogue_cycles_per_accumulator": (33.0, "cycle"), "exchange_growth": (0.07, "ratio"), "exchange_crowding": (0.02, "ratio"), "instruction_cycles": (5.0, "cycle"), "led_row_us": (0.6, "us"),
         **{f"tile_rest_{rows}_us": (rest_us, "us") for rows, rest_us in ((1, 0.3), (2, 0.4), (4, 0.6), (8, 0.1), (16, 0.2), (32, 0.5))},
         "group_slot_cycles": (180.0, "cycle"), "group_quad_cycles": (120.0, "cycle"), "noise_bound_instructions": (120.0, "instruction"), "position_product_us": (7.0, "us"), "small_kernel_us": (1.2, "us")}
STUDY = study_h200()
TRUE = STUDY.with_figures({name: Figure(value, unit, "measured", "made up") for name, (value, unit) in TRUTH.items()})
HEADS = {"markov": QWEN, "gated": Head("g", "gated", 151_936, 151_936, 151_936, 256, 2560), "rnn": Head("r", "rnn", 151_936, 151_936, 151_936, 256, 2560),
         "domino": Head("d", "domino", 151_936, 151_936, 151_936, 256, 2560, 1024)}
CASES = [("markov", 1), ("markov", 4), ("markov", 8), ("markov", 16), ("markov", 32), ("gated", 1), ("rnn", 1), ("domino", 1)]
SAMPLED_BATCHES = (1, 4, 8)
FIXED_CYCLES = 140
OF_PART = {TILES: ("products", "shared_read", "stream", "epilogue", "noise", "block_reduction", "tile_rest"), AGREEMENT: ("exchange", "latent", "led_rows")}


def key_of(kind, batch, probe, variant, temperature=0.0):
    """Return the key of a part of a resident walk."""
    head = HEADS[kind]
    placement = plan(STUDY, head, "int8x2", "resident", **built_for(Workload(batch, temperature=temperature)))
    counts = (placement.register_tiles, placement.shared_tiles, placement.streamed_tiles, placement.staging_tiles)
    key = series_key("resident", head=head, placement=counts, variant=variant)
    return replace(key, head_kind=kind, batch=batch, temperature=temperature, probe=probe, hidden_size=head.hidden_size, gru_size=head.gru_size)


def row(key, steps, samples):
    """Return a record's row."""
    asked = {name: value for name, value in key.as_dict().items() if name != "record" and value is not None}
    return walk_row(**asked, run_id="r", process_index=0, recorded_at_utc="2026-01-31T00:00:00Z", steps=steps, samples_us=samples, samples_dropped=0)


def phase_us(key, phase):
    """What warp 0's clocks would say of a phase, where the model is the truth."""
    case = case_of_series(TRUE, key)
    terms = {name: shown for name, (shown, _, _) in split(step_groups(resolve(TRUE).values, case)).items()}
    if phase == "products":
        return 0.3 * terms["epilogue"] if case.words.kernel.grouped else terms["products"] + terms["shared_read"]
    if phase == "epilogue":
        return 0.7 * terms["epilogue"] if case.words.kernel.grouped else terms["epilogue"] / case.passes + FIXED_CYCLES / case.clock_mhz
    if phase == "exchange":
        return terms["exchange"] + terms["led_rows"]
    return terms["latent"] + terms.get("gate", 0) + (terms["state_read"] if key.head_kind == "gated" else 0)


def part_rows(kinds=("markov", "gated", "rnn", "domino"), probes=(PHASE, TILES, AGREEMENT)):
    """Return rows of parts that obey the model."""
    rows = []
    for kind, batch in CASES:
        if kind not in kinds:
            continue
        for phase in ("products", "epilogue", "exchange", "latent") if PHASE in probes else ():
            key = key_of(kind, batch, PHASE, phase)
            rows.append(row(key, 16, [phase_us(key, phase)] * 132))
        for probe in (TILES, AGREEMENT):
            if probe not in probes:
                continue
            key = key_of(kind, batch, probe, probe)
            case, values = case_of_series(TRUE, key), resolve(TRUE).values
            shown, of_entry = split(step_groups(values, case)), split(entry_groups(values, case))
            step_us = (0.3 if probe == AGREEMENT else 0.0) + sum(shown[name][0] for name in OF_PART[probe] if name in shown)
            entry_us = 5.0 + sum(of_entry[name][0] for name in ("position_terms", "shard_load") if name in of_entry)
            rows += [row(key, steps, [entry_us + steps * step_us] * 5) for steps in (1, 7, 16)]
    return pd.DataFrame([*rows, *(sampled_rows() if TILES in probes and "markov" in kinds else ())])


def sampled_rows():
    """Return products and selection of sampled rows. Alone, noise that walks draw while blocks agree is drawn between."""
    rows = []
    for batch in SAMPLED_BATCHES:
        key = key_of("markov", batch, TILES, TILES, temperature=1.0)
        groups = step_groups(resolve(TRUE).values, case_of_series(TRUE, key))
        waited_us = min(batch * 8 * 132 * 0.22 / (9 * 16 * 8), 1.0) * 9 * 115 * TRUTH["instruction_cycles"][0] / 1980  # alone, no block waits for another's second look
        step_us = sum(split(groups)[name][0] for name in OF_PART[TILES]) + (0.5 if batch == 1 else -waited_us)
        rows += [row(key, steps, [5.0 + steps * step_us] * 5) for steps in (1, 7, 16)]
    return rows


def test_constants_come_back_from_parts_that_obey_the_model():
    figures = part_figures(STUDY, part_rows())
    assert figures.keys() == TRUTH.keys()
    for name, (value, unit) in TRUTH.items():
        figure = figures[name]
        assert figure.value == pytest.approx(value, rel=1e-6), name
        assert (figure.unit, figure.kind) == (unit, "derived" if name == "tile_rest_2_us" else "measured") and figure.standard_error >= 0.05 * value * 0.999
    assert figures["tile_rest_2_us"].standard_error == pytest.approx(0.3 / 12**0.5), "between one row and four, nobody knows where"


def test_parts_that_are_not_recorded_fix_nothing():
    assert part_figures(STUDY, part_rows(kinds=("markov",), probes=(AGREEMENT,))).keys() == {"led_row_us", "exchange_growth", "exchange_crowding"}
    assert part_figures(STUDY, part_rows(kinds=("gated",))) == {}, "a part is compared with a Markov head's"
    assert "epilogue_cycles_per_accumulator" not in part_figures(STUDY, part_rows(probes=(TILES, AGREEMENT)))


def test_phases_of_warpgroups_tell_slots_from_quads():
    frame = part_rows()
    figures = part_figures(STUDY, frame)
    assert [figures[name].value for name in ("group_slot_cycles", "group_quad_cycles")] == pytest.approx([180, 120])
    assert not part_figures(STUDY, frame[frame["batch"] != 8]).keys() & set(GROUP_PARAMETERS), "16 and 32 rows are four quads a slot, once and twice"
    assert not part_figures(STUDY, frame[frame["variant"] != "products"]).keys() & set(GROUP_PARAMETERS), "one mark without the other"


def test_phases_of_warpgroups_that_scatter_fix_nothing():
    frame = part_rows(probes=(PHASE,))
    grouped = (frame["batch"] == 16) & frame["variant"].isin(["products", "epilogue"])
    frame.loc[grouped, "samples_us"] = pd.Series([[12.0] * 132] * int(grouped.sum()), index=frame.index[grouped])
    assert not part_figures(STUDY, frame).keys() & set(GROUP_PARAMETERS)


def test_rows_beyond_a_warp_a_scheduler_have_a_growth_of_their_own():
    frame = part_rows(kinds=("markov",), probes=(AGREEMENT,))
    longer = (frame["probe"] == AGREEMENT) & (frame["batch"] == 8)
    frame.loc[longer, "samples_us"] = pd.Series([[one + steps * 4 * 0.05 * 0.8 for one in samples] for steps, samples in zip(frame.loc[longer, "steps"], frame.loc[longer, "samples_us"])],
                                                index=frame.index[longer])
    found = part_figures(STUDY, frame)
    assert found["exchange_growth"].value == pytest.approx(0.07) and found["exchange_crowding"].value == pytest.approx(0.02 + 0.05)
    found = part_figures(STUDY, frame[frame["batch"] != 4])
    assert found["exchange_growth"].value == pytest.approx(0.07 + 4 / 7 * 0.07) and found["exchange_crowding"].value == pytest.approx(0, abs=1e-9), "one line where four rows are not recorded"


def test_several_readings_by_warps_share_their_rest(monkeypatch):
    monkeypatch.setattr("cost_model.placement.WARPGROUP_ROWS", 64)
    figures = part_figures(STUDY, part_rows(kinds=("markov",), probes=(PHASE, TILES)))
    assert {name for name in figures if name.startswith("tile_rest")} == {"tile_rest_1_us", "tile_rest_2_us", "tile_rest_4_us"}
    assert figures["tile_rest_4_us"].value == pytest.approx(0.6), "of one reading, whether a kernel makes one or eight"


def test_scatter_of_blocks_does_not_move_a_phase():
    frame = part_rows(probes=(PHASE,))
    rng = np.random.default_rng(3)
    frame["samples_us"] = [list(np.sort(np.array(samples) * (1 + 0.02 * rng.standard_normal(len(samples))))) for samples in frame["samples_us"]]
    figures = part_figures(STUDY, frame)
    assert figures["epilogue_cycles_per_accumulator"].value == pytest.approx(33.0, rel=0.05)
    assert figures["instruction_cycles"].value == pytest.approx(5.0, rel=0.05)


def test_phases_that_contradict_a_parameter_fix_nothing():
    frame = part_rows(probes=(PHASE,))
    shrinking = {("epilogue", 1): 0.5, ("epilogue", 4): 0.45, ("epilogue", 8): 0.4, ("latent", 1): 0.2}
    frame["samples_us"] = [[shrinking.get((variant, batch), samples[0])] * 132 for variant, batch, samples in zip(frame["variant"], frame["batch"], frame["samples_us"])]
    assert part_figures(STUDY, frame) == {}


def test_clocks_of_a_kernel_that_spills_are_not_the_walks(monkeypatch):
    monkeypatch.setattr("cost_model.placement.WARPGROUP_ROWS", 16)
    frame = part_rows(probes=(PHASE,))
    frame = frame[frame["batch"] != 4]
    spilt = frame["batch"] == 8
    frame.loc[spilt, "samples_us"] = pd.Series([[9.0] * 132] * int(spilt.sum()), index=frame.index[spilt])
    assert part_figures(STUDY, frame)["epilogue_cycles_per_accumulator"].value != pytest.approx(33.0, rel=0.1)
    frame["spill_bytes"] = [404 if one else 0 for one in spilt]
    assert "epilogue_cycles_per_accumulator" not in part_figures(STUDY, frame), "one count of accumulators is left"


def test_a_constant_is_never_below_nothing():
    """Noise can make a part of 8 rows shorter than its terms; the model has no negative times."""
    frame = part_rows(probes=(TILES,))
    short = (frame["batch"] == 8) & (frame["temperature"] == 0)
    frame.loc[short, "samples_us"] = pd.Series([[5.0 + 0.1 * steps] * 5 for steps in frame.loc[short, "steps"]], index=frame.index[short])
    assert part_figures(STUDY, frame)["tile_rest_8_us"].value == 0.0
