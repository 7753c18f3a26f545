"""Gets data into accelerator memory as the crow flies, with a receipt of the way each byte really went.

``crowfly.load_file`` and ``crowfly.safe_open`` read safetensors files and model folders; ``crowfly.save_file``
writes them whole or not at all. ``crowfly.torch`` and ``crowfly.numpy`` are drop-ins for the modules of that
name in the package safetensors, ``crowfly.aio`` has the same for asyncio. Nothing is imported beyond Python's
own library until it is needed.
"""

from . import errors
from ._crowfly import Engine, Region, Tensor, Transfer, __version__
from ._load import Tensors, finish_load, load, load_file, start_load
from ._machine import Diagnosis, Finding, Topology, Way, doctor, route
from ._open import Slice, safe_open
from ._receipt import Ceiling, Evidence, Fix, Obstacle, Receipt, Share, Verification
from ._save import save, save_file
from ._stream import StreamLoad, load_on_stream
from .errors import CrowflyError, RouteRefused

__all__ = [
    "Ceiling",
    "CrowflyError",
    "Diagnosis",
    "Engine",
    "Evidence",
    "Finding",
    "Fix",
    "Obstacle",
    "Receipt",
    "Region",
    "RouteRefused",
    "Share",
    "Slice",
    "StreamLoad",
    "Tensor",
    "Tensors",
    "Topology",
    "Transfer",
    "Verification",
    "Way",
    "__version__",
    "doctor",
    "errors",
    "finish_load",
    "load",
    "load_file",
    "load_on_stream",
    "route",
    "safe_open",
    "save",
    "save_file",
    "start_load",
]
