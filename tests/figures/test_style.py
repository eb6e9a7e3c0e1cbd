import colorsys

import pytest
from matplotlib.colors import to_rgb

from mkbench.figures import style


@pytest.mark.parametrize(
    ("shape", "label"),
    [
        ({"m": 32768, "n": 32768, "k": 4096}, "M=N=32K, K=4K"),
        ({"m": 100, "n": 200, "k": 200}, "M=100, N=K=200"),
        ({"k": 64, "m": 100, "n": 200}, "M=100, N=200, K=64"),
        ({"tokens": 131072}, "tokens=128K"),
        ({"experts": 8, "skew": 150, "t": 32768, "topk": 2}, "tokens=32K, experts=8, top-k=2, skew 1.5"),
        ({"b": 4, "causal": 0, "d": 64, "s": 9}, "sequence=9, B=4, D=64, causal=0"),
    ],
)
def test_shape_label(shape, label):
    assert style.shape_label(shape) == label


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_larger_sizes_are_darker(count):
    lightness = [colorsys.rgb_to_hls(*to_rgb(color))[1] for color in style.size_colors(count)]
    assert lightness == sorted(lightness, reverse=True)
    assert len(set(lightness)) == count


def test_machine_label_names_the_transport_between_nodes():
    row = {"nodes": 2, "ranks_per_node": 8, "cluster": "2x8-h200-ib", "platform": "sim", "transport": "sim"}
    assert style.machine_label(row) == "2x8-h200-ib  (2 nodes x 8 ranks, platform sim, transport sim)"


@pytest.mark.parametrize(
    ("platform", "ranks_per_gpu", "words"),
    [
        ("host", None, "measured on a CPU: every block is a thread, no time here is a GPU's"),
        ("cuda", 1, "measured, one rank a GPU"),
        ("cuda", 2, "measured on a virtual cluster, 4 ranks on 2 H200"),
        ("cuda", 4, "measured on a virtual cluster, 4 ranks on one H200"),
        ("sim", 4, ""),
    ],
)
def test_measured_label(platform, ranks_per_gpu, words):
    row = {"nodes": 2, "ranks_per_node": 2, "hardware": "h200", "ranks_per_gpu": ranks_per_gpu}
    assert style.measured_label({**row, "platform": platform, "simulated": platform == "sim"}) == words
