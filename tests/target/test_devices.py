"""Facts about devices."""

from __future__ import annotations

import pytest

from tvmtile import carver
from tvmtile.carver.arch import driver, is_cpu_arch, is_cuda_arch, is_metal_arch
from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import MissingDependency, UnknownTarget
from tvmtile.target.capabilities import _CUDA_SHARED_KB

CUDA_TARGETS = [{"kind": "cuda", "arch": arch} for arch in _CUDA_SHARED_KB if arch != "sm_72"]


@pytest.mark.parametrize("target", [*CUDA_TARGETS, "metal", "llvm"], ids=str)
def test_each_target_has_a_device(target):
    device = carver.get_arch(target)
    kinds = [is_cuda_arch(device), is_metal_arch(device), is_cpu_arch(device)]
    assert sum(kinds) == 1
    assert 0 < device.smem_cap <= device.max_smem_usage
    assert device.compute_max_core > 0
    assert device.memory_per_core > 0
    assert device.matrix >= 8


def test_a_device_of_an_architecture():
    device = carver.CUDA({"kind": "cuda", "arch": "sm_90a"})
    assert (device.smem_cap, device.reg_cap, device.warp_size) == (227 * 1024, 65536, 32)
    assert device.name == "H200" or has_gpu()


def test_the_device_of_this_machine(monkeypatch):
    assert carver.auto_infer_current_arch().platform == ("CUDA" if has_gpu() else "CPU")
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert carver.CPU().compute_max_core == 3


def test_devices_that_are_not_there(monkeypatch):
    with pytest.raises(UnknownTarget, match="tile programs can't be lowered for 'hip'"):
        carver.CDNA("hip")
    monkeypatch.setattr(driver, "has_gpu", lambda: False)
    with pytest.raises(MissingDependency, match="there is no NVIDIA GPU here to ask"):
        driver.get_num_sms()


@pytest.mark.gpu
def test_a_gpu_answers():
    import torch

    properties = torch.cuda.get_device_properties(0)
    assert driver.get_num_sms() == properties.multi_processor_count
    assert driver.get_device_name() == properties.name
    assert carver.CUDA().compute_max_core == properties.multi_processor_count
    assert driver.get_shared_memory_per_block() <= driver.get_max_dynamic_shared_size_bytes()
