"""Memory and bandwidth of well-known GPUs. Source of every figure: the vendor's datasheet."""

import re
from dataclasses import dataclass

from specbench.errors import UsageError

GIB, GB = 2**30, 10**9
RESERVED_BYTES = 3 * 2**28  # CUDA's context and libraries
MIN_WITHOUT_UNIT = 2**20  # a smaller number without a unit is probably in GiB or GB/s


class UnknownGpu(UsageError):
    """A GPU name that is not in the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Memory and bandwidth of a GPU. The compute capability is only known of GPUs that emulate
    bfloat16."""

    name: str
    memory_bytes: int
    bytes_per_s: float | None  # peak; 80 to 90% is reached in practice
    compute_capability: tuple[int, int] | None = None


def _gpu(
    name: str,
    gib: int,
    gb_per_s: float,
    *,
    in_band_ecc: bool = False,
    compute_capability: tuple[int, int] | None = None,
) -> Gpu:
    """A GPU; `in_band_ecc`: GDDR's error correction, on by default, takes 1/16 of the memory."""
    return Gpu(
        name=name,
        memory_bytes=gib * GIB * 15 // 16 if in_band_ecc else gib * GIB,
        bytes_per_s=gb_per_s * GB,
        compute_capability=compute_capability,
    )


# A GB in a datasheet is a GiB of memory, but 1e9 bytes of bandwidth.
GPUS: tuple[Gpu, ...] = (
    _gpu("T4", 16, 320, in_band_ecc=True, compute_capability=(7, 5)),
    _gpu("V100-16GB", 16, 900, compute_capability=(7, 0)),
    _gpu("V100-32GB", 32, 900, compute_capability=(7, 0)),
    _gpu("A10", 24, 600, in_band_ecc=True),
    _gpu("A10G", 24, 600, in_band_ecc=True),
    _gpu("A30", 24, 933),
    _gpu("A40", 48, 696, in_band_ecc=True),
    _gpu("A100-40GB", 40, 1555),
    _gpu("A100-80GB-PCIe", 80, 1935),
    _gpu("A100-80GB", 80, 2039),
    _gpu("L4", 24, 300, in_band_ecc=True),
    _gpu("L40", 48, 864, in_band_ecc=True),
    _gpu("L40S", 48, 864, in_band_ecc=True),
    _gpu("H100", 80, 3350),
    _gpu("H100-PCIe", 80, 2000),
    _gpu("H100-NVL", 94, 3900),
    _gpu("H200", 141, 4800),
    _gpu("B200", 180, 8000),
    _gpu("RTX-3090", 24, 936),
    _gpu("RTX-4080", 16, 717),
    _gpu("RTX-4090", 24, 1008),
    _gpu("RTX-5080", 16, 960),
    _gpu("RTX-5090", 32, 1792),
    _gpu("RTX-A6000", 48, 768),
    _gpu("RTX-6000-Ada", 48, 960),
    _gpu("RTX-PRO-6000", 96, 1792),
    _gpu("RTX-PRO-6000-Server", 96, 1597),
    _gpu("MI210", 64, 1638),
    _gpu("MI250X", 128, 3277),
    _gpu("MI300X", 192, 5300),
    _gpu("MI325X", 256, 6000),
)
_ALIASES = {
    "h100sxm": "H100",
    "h100sxm5": "H100",
    "a100": "A100-80GB",
    "a10080": "A100-80GB",
    "a10040": "A100-40GB",
    "a100sxm480gb": "A100-80GB",
    "a100sxm440gb": "A100-40GB",
    "a10080gbsxm": "A100-80GB",
    "v100": "V100-16GB",
    "h200sxm": "H200",
    "b200sxm": "B200",
    # Names that drivers report.
    "h10080gbhbm3": "H100",
    "h100nvl": "H100-NVL",
    "h200nvl": "H200",
    "v100sxm216gb": "V100-16GB",
    "v100sxm232gb": "V100-32GB",
    "rtx6000adageneration": "RTX-6000-Ada",
    "rtxpro6000blackwellserveredition": "RTX-PRO-6000-Server",
    "rtxpro6000blackwellworkstationedition": "RTX-PRO-6000",
    "instinctmi300x": "MI300X",
}
_UNITS = {
    "": 1,
    "b": 1,
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, ignoring case, punctuation and vendor; UsageError if unknown."""
    wanted = _normalized(name)
    known = {_normalized(gpu.name): gpu for gpu in GPUS}
    known |= {alias: known[_normalized(full)] for alias, full in _ALIASES.items()}
    if wanted in known:
        return known[wanted]
    raise UnknownGpu(
        f"--gpu {name!r} is unknown; choose from {', '.join(gpu.name for gpu in GPUS)}, or give "
        "--gpu-memory 24GiB --gpu-bandwidth 1008GB/s"
    )


def parse_bytes(text: str) -> int:
    """Bytes in a size such as `24GiB`, `24GB` or `80e9`; UsageError for other text, even `24`."""
    return round(_number("--gpu-memory", text, "24GiB"))


def parse_bandwidth(text: str) -> float:
    """Bytes per second in `1008GB/s` or `3.35TB/s`; UsageError for any other text."""
    return _number("--gpu-bandwidth", text.removesuffix("/s").removesuffix("ps"), "1008GB/s")


def _number(option: str, text: str, example: str) -> float:
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?(?:e\d{1,2})?)\s*([a-zA-Z]*)\s*", text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None or not float(match[1]):
        raise UsageError(f"{option} {text!r}: expected a size such as {example}")
    if not match[2] and float(match[1]) < MIN_WITHOUT_UNIT:
        raise UsageError(f"{option} {text!r}: add a unit, such as {example}")
    return float(match[1]) * factor


def _normalized(name: str) -> str:
    """The name's letters, in lowercase, and its digits, without vendor names."""
    return re.sub(r"[^a-z0-9]|nvidia|geforce|tesla|amd ", "", name.lower())
