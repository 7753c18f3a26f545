"""Makes the safetensors package's own tests run against crowfly.

They import the package; by then its readers and writers are crowfly's. What is private to the package (pointers
of storages, specifications of tensors) stays its own. A test of what crowfly does otherwise on purpose is
skipped with the reason.
"""

import pytest
import safetensors
import safetensors.numpy
import safetensors.torch

import crowfly
import crowfly.numpy
import crowfly.torch

OTHERWISE = {
    "test_bogus": "it tests the wording of an error",
    "test_exception": "it tests the package's own TensorSpec",
    "test_file_not_found": "an error of crowfly says more than the path",
    "test_invalid_backend_string_raises": "crowfly has policies and paths, no backends",
    "test_meta_tensor": "it tests the wording of an error",
    "test_numpy_slice": "an index out of range is refused in crowfly's words; see test_open.py",
    "test_sparse": "it tests the wording of an error",
}


def pytest_collection_modifyitems(items):
    for item in items:
        name = item.name.split("[")[0]
        if name in OTHERWISE:
            item.add_marker(pytest.mark.skip(reason=OTHERWISE[name]))


def safe_open(filename, framework, device="cpu", *, backend="mmap"):
    return crowfly.safe_open(filename, framework, device)


def load_file_torch(filename, device="cpu", *, backend="mmap"):
    return crowfly.torch.load_file(filename, device)


def load_file_numpy(filename, *, backend="mmap"):
    return crowfly.numpy.load_file(filename)


def load_model(model, filename, strict=True, device="cpu", *, backend="mmap"):
    return crowfly.torch.load_model(model, filename, strict, device)


safetensors.safe_open = safe_open
safetensors.SafetensorError = crowfly.CrowflyError
for module, ours, load_file in (
    (safetensors.torch, crowfly.torch, load_file_torch),
    (safetensors.numpy, crowfly.numpy, load_file_numpy),
):
    module.safe_open = safe_open
    module.load_file = load_file
    module.load = ours.load
    module.save = ours.save
    module.save_file = ours.save_file
safetensors.torch.load_model = load_model
safetensors.torch.save_model = crowfly.torch.save_model
