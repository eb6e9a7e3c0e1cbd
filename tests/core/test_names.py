from mkbench.core.names import suggest, unknown


def test_near_name() -> None:
    assert suggest("gem_ar", ["ag_gemm", "gemm_ar", "gemm_rs"]) == "gemm_ar"
    assert suggest("zzz", ["gemm_ar"]) is None


def test_unknown_names_the_near_one_or_all() -> None:
    near = unknown("kernel", "gem_ar", ["gemm_ar", "gemm_rs"])
    assert str(near) == "unknown kernel 'gem_ar'; did you mean 'gemm_ar'?"
    far = unknown("kernel", "zzz", ["gemm_ar", "gemm_rs"])
    assert str(far) == "unknown kernel 'zzz'"
    assert far.hint == "known: gemm_ar, gemm_rs"
