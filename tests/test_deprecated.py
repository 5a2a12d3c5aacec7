"""Old names work for one version, and say what they are called now."""

from importlib import import_module

import pytest

OLD = {
    "gtpool.graph": ("Level", "GraphLayout"),
    "gtpool.data.features": ("Raw", "RawGraphs"),
    "gtpool.data.records": ("pack", "pack_records"),
    "gtpool.data.stock": ("Stock", "DeviceDataset"),
    "gtpool.explain": ("Cover", "Coverage"),
    "gtpool.study.inputs": ("lay_out", "expand_folds"),
    "gtpool.study.space": ("PAPER", "PAPER_SPACE"),
    "gtpool.study.run_one": ("follow", "join_process_group"),
    "gtpool.study.cross_validate": ("Chosen", "FinalModel"),
    "gtpool.study.ray_executor": ("Ray", "RayExecutor"),
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_is_the_new_thing_with_a_warning(name):
    module, (old, new) = import_module(name), OLD[name]
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(module, old) is getattr(module, new)
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018
