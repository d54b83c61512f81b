"""Gpu: curves against closed forms, errors that name what is wrong, recognition, calibration files."""

import copy
import json
import math
import pickle
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model import gpu as gpu_module
from cost_model.catalogue import CatalogueError
from cost_model.errors import BadInput
from cost_model.gpu import (
    CALIBRATED_PARAMETERS, AmbiguousGpu, BandwidthCurve, BandwidthMismatch, Figure, Gpu, MissingFact, UnknownGpu,
    calibration_toml, list_gpus, load_gpu, read_calibration, recognise_gpu,
)

MIB = 1024**2


def bandwidth(value: float, kind: str = "measured") -> Figure:
    """A bandwidth figure of this test."""
    return Figure(value, "B/s", kind, "test")


def test_a_curve_is_straight_in_log_log_and_flat_outside():
    curve = BandwidthCurve((10.0, 1000.0), (bandwidth(8e12), bandwidth(2e12)))
    assert curve.at(10) == 8e12 and curve.at(1) == 8e12
    assert curve.at(1000) == pytest.approx(2e12) and curve.at(1e9) == 2e12
    assert curve.at(100) == pytest.approx(4e12), "the geometric mean half way in log-log"
    assert curve.at(10 ** 1.5) == pytest.approx(math.sqrt(8e12 * 4e12))


@given(st.lists(st.tuples(st.floats(1, 1e12), st.floats(1e3, 1e14)), min_size=1, max_size=8, unique_by=lambda p: p[0]), st.floats(1, 1e12))
def test_a_curve_passes_through_its_points_and_stays_between_them(points, footprint):
    points.sort()
    curve = BandwidthCurve(tuple(p[0] for p in points), tuple(bandwidth(p[1]) for p in points))
    for size, value in points:
        assert curve.at(size) == pytest.approx(value, rel=1e-9)
    values = [value for _, value in points]
    assert min(values) * (1 - 1e-9) <= curve.at(footprint) <= max(values) * (1 + 1e-9)


@pytest.mark.parametrize(("sizes", "figures", "reason"), [
    ((), (), "0 footprints and 0 figures"),
    ((1.0, 2.0), (bandwidth(1),), "2 footprints and 1 figures"),
    ((2.0, 1.0), (bandwidth(1), bandwidth(1)), "strictly rising"),
    ((0.0,), (bandwidth(1),), "must be above 0"),
    ((1.0,), (Figure(1, "us", "measured", "test"),), "in B/s"),
])
def test_a_bad_curve_is_refused(sizes, figures, reason):
    with pytest.raises(BadInput, match=reason):
        BandwidthCurve(sizes, figures)


def test_a_footprint_must_be_above_zero():
    with pytest.raises(BadInput, match="a footprint is 0 bytes"):
        BandwidthCurve((1.0,), (bandwidth(1),)).at(0)


@pytest.mark.parametrize(("fields", "reason"), [
    ((-1.0, "B", "datasheet", "s"), "value is -1.0"),
    ((math.nan, "B", "datasheet", "s"), "value is nan"),
    ((True, "B", "datasheet", "s"), "value is True"),
    ((1.0, "B", "guess", "s"), "kind is 'guess'; choose one of datasheet, microbenchmark, measured, derived, transferred"),
    ((1.0, "", "datasheet", "s"), "lacks its unit"),
    ((1.0, "B", "datasheet", ""), "lacks its source"),
    ((1.0, "B", "datasheet", "s", -1.0), "standard error is -1.0"),
])
def test_a_bad_figure_is_refused(fields, reason):
    with pytest.raises(BadInput, match=reason):
        Figure(*fields)


def test_a_name_and_its_unit_must_agree():
    with pytest.raises(BadInput, match="exchange_us is given in ns; its unit is us"):
        load_gpu("h200-sxm").with_figures({"exchange_us": Figure(770, "ns", "measured", "test")})


def test_h200_facts():
    gpu = load_gpu("h200-sxm", calibrated=False)
    assert gpu.compute_capability == (9, 0) and gpu.sm_count == 132 and gpu.calibration is None
    assert gpu.value("boost_clock_mhz") == 1980
    assert gpu.value("dram_bandwidth_bytes_per_s") == 4.8e12
    assert gpu.value("int8_dense_ops_per_s") == 1.979e15, "dense: half of the sheet's 3,958"
    assert gpu.value("l2_bytes") == 60 * MIB
    assert "52428800 according to" in gpu.figure("l2_bytes").note, "the other value met is kept"
    assert gpu.value("smem_bytes_per_block_optin") == 227 * 1024
    assert gpu.traits["dram_type"] == "HBM3e"
    assert load_gpu("h200_sxm_141gb", calibrated=False) == gpu


def test_a_missing_fact_names_gpu_facts_reason_and_remedy():
    gpu = load_gpu("h20", calibrated=False)
    with pytest.raises(MissingFact) as error:
        gpu.require(["sm_count", "boost_clock_mhz", "exchange_us"])
    message = str(error.value)
    assert message.startswith("h20 lacks boost_clock_mhz, exchange_us") and "no source read gives it" in message and "wts-lab calibrate" in message
    with pytest.raises(MissingFact, match="h20 lacks boost_clock_mhz"):
        gpu.value("boost_clock_mhz")
    assert not gpu.has("boost_clock_mhz") and gpu.has("sm_count")


def test_an_unknown_gpu_lists_the_known_and_guesses():
    with pytest.raises(UnknownGpu) as error:
        load_gpu("h200")
    assert all(gpu in str(error.value) for gpu in list_gpus())
    assert "did you mean h200-nvl or h200-sxm?" in str(error.value)
    for odd in ("", "../h200-sxm", "calibrated/h200-sxm"):
        with pytest.raises(UnknownGpu):
            load_gpu(odd)


@pytest.mark.parametrize("share", [0.59, 1.03])
def test_an_incredible_bandwidth_names_both(share):
    gpu = load_gpu("h200-sxm", calibrated=False)
    with pytest.raises(BandwidthMismatch) as error:
        gpu.with_figures({"hbm_read_bytes_per_s": bandwidth(share * 4.8e12)})
    assert f"{share * 4.8e12:.4g} B/s" in str(error.value) and "4.8e+12 B/s" in str(error.value)
    curve = BandwidthCurve((1024.0 * MIB,), (bandwidth(share * 4.8e12),))
    with pytest.raises(BandwidthMismatch, match="the read curve at 1,073,741,824 bytes"):
        gpu.with_figures({}, {"read": curve})


@pytest.mark.parametrize("share", [0.6, 0.97, 1.02])
def test_a_credible_bandwidth_is_taken(share):
    gpu = load_gpu("h200-sxm", calibrated=False)
    curve = BandwidthCurve((24.0 * MIB, 1024.0 * MIB), (bandwidth(9.7e12), bandwidth(share * 4.8e12)))
    taken = gpu.with_figures({"hbm_read_bytes_per_s": bandwidth(share * 4.8e12)}, {"read": curve}, "test run")
    assert taken.value("hbm_read_bytes_per_s") == pytest.approx(share * 4.8e12)
    assert taken.curves["read"].at(24 * MIB) == 9.7e12, "L2 may be faster than the sheet's memory"
    assert taken.calibration == "test run" and not gpu.has("hbm_read_bytes_per_s")


def test_a_gpu_is_read_only_hashable_copied_and_pickled():
    gpu = load_gpu("h200-sxm")
    with pytest.raises(TypeError):
        gpu.figures["sm_count"] = None
    with pytest.raises(AttributeError):
        gpu.id = "x"
    assert pickle.loads(pickle.dumps(gpu)) == gpu == copy.deepcopy(gpu)
    assert hash(gpu) == hash(load_gpu("h200-sxm"))
    assert json.loads(json.dumps(gpu.as_dict()))["figures"]["sm_count"]["value"] == 132


@pytest.mark.parametrize(("name", "sm_count", "memory_bytes", "expected"), [
    ("NVIDIA H200", 132, 150_109_945_856, "h200-sxm"),
    ("NVIDIA H200 NVL", 132, None, "h200-nvl"),
    ("NVIDIA H100 80GB HBM3", 132, 85_029_158_912, "h100-sxm"),
    ("NVIDIA H100 PCIe", 114, 84_942_979_072, "h100-pcie"),
    ("NVIDIA H100 NVL", 132, None, "h100-nvl"),
    ("H100", 114, None, "h100-pcie"),
    ("H100", 132, 84_942_979_072, "h100-sxm"),
    ("H100", 132, 100_000_000_000, "h100-nvl"),
    ("NVIDIA A100-SXM4-80GB", 108, 85_094_825_984, "a100-sxm-80gb"),
    ("A100-SXM4", 108, 42_000_000_000, "a100-sxm-40gb"),
    ("NVIDIA GeForce RTX 4090", 128, 25_756_172_288, "rtx-4090"),
    ("nvidia b200", 148, None, "b200-sxm"),
])
def test_a_device_is_recognised(name, sm_count, memory_bytes, expected):
    assert recognise_gpu(name, sm_count, memory_bytes).id == expected


def test_every_driver_name_is_recognised():
    for known in list_gpus():
        gpu = load_gpu(known)
        for name in gpu.driver_names:
            assert recognise_gpu(name, gpu.sm_count).id == known


def test_an_ambiguous_device_asks():
    with pytest.raises(AmbiguousGpu, match="may be any of h100-nvl, h100-sxm; say which with --gpu"):
        recognise_gpu("NVIDIA H100", 132)


@pytest.mark.parametrize(("name", "sm_count", "reason"), [
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, "a MIG or MPS share"),
    ("NVIDIA H200", 4, "h200-sxm \\(132 multiprocessors\\)"),
    ("NVIDIA Tesla T4", 40, "is not in the catalogue; known are a10"),
    ("", 132, "is not in the catalogue"),
])
def test_an_unknown_device_is_never_given_a_default(name, sm_count, reason):
    with pytest.raises(UnknownGpu, match=reason):
        recognise_gpu(name, sm_count)


NUMBERS = st.floats(0, 1e18, allow_subnormal=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.dictionaries(st.sampled_from(sorted(CALIBRATED_PARAMETERS.keys() - {"hbm_read_bytes_per_s"})), st.tuples(NUMBERS, TEXTS, NUMBERS | st.none(), TEXTS), min_size=1),
    st.lists(st.floats(1, 100 * MIB), min_size=1, max_size=4, unique=True), TEXTS,
)
def test_a_calibration_file_reads_back_as_it_was(tmp_path_factory, parameters, sizes, calibration):
    gpu = load_gpu("h200-sxm", calibrated=False)
    figures = {
        name: Figure(value, gpu_module.expected_unit(name) or "cycle", "measured", source, error, note)
        for name, (value, source, error, note) in parameters.items()
    }
    curves = {"read": BandwidthCurve(tuple(sorted(sizes)), tuple(bandwidth(4e12 + i) for i in range(len(sizes))))}
    calibrated = gpu.with_figures(figures, curves, calibration)
    path = tmp_path_factory.mktemp("calibrated") / "h200-sxm.toml"
    path.write_text(calibration_toml(calibrated), encoding="utf-8")
    assert read_calibration(path, gpu) == calibrated
    assert tomllib.loads(path.read_text("utf-8"))["figures"].keys() == figures.keys(), "no fact strays into the file"


def test_a_calibration_of_another_gpu_is_refused(tmp_path):
    path = tmp_path / "h100-sxm.toml"
    path.write_text(calibration_toml(load_gpu("h200-sxm", calibrated=False).with_figures({}, calibration="test")))
    with pytest.raises(CatalogueError, match="is a calibration of 'h200-sxm', not of 'h100-sxm'"):
        read_calibration(path, load_gpu("h100-sxm", calibrated=False))


def test_an_implausible_calibration_file_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(
        'schema_version = 1\ngpu = "h200-sxm"\ncalibration = "t"\n'
        '[figures.hbm_read_bytes_per_s]\nvalue = 2e12\nunit = "B/s"\nkind = "measured"\nsource = "t"\n'
    )
    with pytest.raises(BandwidthMismatch):
        read_calibration(path, load_gpu("h200-sxm", calibrated=False))


@pytest.mark.parametrize(("change", "reason"), [
    (("schema_version = 1", "schema_version = 9"), "schema_version is 9; this code reads version 1"),
    (('id = "mine"', 'id = "yours"'), "has the id 'yours'"),
    (('"9.0"', '"sm_90"'), "compute_capability is 'sm_90'; write it as '9.0'"),
    (('unit = "SM"\n', ""), "sm_count lacks unit"),
    (('kind = "datasheet"', 'kind = "rumour"'), "kind is 'rumour'"),
    (('["doc"]', '["nowhere"]'), "source nowhere: not in published/sources.toml"),
    (('["doc"]', "[]"), "list is empty"),
    (("[figures.sm_count]", "colour = 1\n[figures.sm_count]"), "unknown keys colour"),
    (("value = 132", "value = "), "cannot be read as a fact file"),
])
def test_a_broken_gpu_file_is_named(tmp_path, monkeypatch, change, reason):
    (tmp_path / "gpus").mkdir()
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "sources.toml").write_text('[doc]\ndocument = "a sheet"\nreading = "read"\n')
    good = (
        'schema_version = 1\nid = "mine"\nname = "Mine"\naliases = []\ndriver_names = []\ncompute_capability = "9.0"\n'
        '[figures.sm_count]\nvalue = 132\nunit = "SM"\nkind = "datasheet"\nsource = ["doc"]\n'
    )
    path = tmp_path / "gpus" / "mine.toml"
    monkeypatch.setattr(gpu_module, "data_root", lambda: tmp_path)
    path.write_text(good)
    assert load_gpu("mine").figure("sm_count").source == "a sheet"
    path.write_text(good.replace(*change))
    with pytest.raises(CatalogueError) as error:
        load_gpu("mine")
    assert str(path) in str(error.value) and reason in str(error.value)


def test_a_gpu_needs_no_catalogue():
    gpu = Gpu("mine", "Mine", (), (9, 0), {"sm_count": Figure(4, "SM", "measured", "the device")})
    assert gpu.sm_count == 4 and gpu.curves == {}
