"""Compile the Triton kernel for a GPU that need not be there, in a process of its own.

Triton's interpreter accepts more than its compiler does. Prints the PTX instructions of each form.
"""

import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sgdf.kernels import cuda
from sgdf.kernels import triton_filter as device
from sgdf.kernels.work import ESTIMATE, FILTER, MOMENTUM

FLOAT = {"M": tl.float32, "S": tl.float32, "WHOLE_ROWS": False}
BF16_STATE = {"M": tl.bfloat16, "S": tl.bfloat16, "WHOLE_ROWS": False}
CODES = {"M": tl.int8, "S": tl.uint8, "WHOLE_ROWS": True}
POINTERS = {"table": "*i64", "grads": "*i64", "block_tensor": "*i32", "n": "i32"}
POINTERS |= dict.fromkeys(("lr_at", "grad_scale", "found_inf"), "*fp32")
#: Everything that is decided when a kernel is compiled, once for every format and kind.
PLAIN = {
    "P": tl.float32, "G": tl.float32, "KIND": cuda.KINDS[FILTER], "GAIN": 0, "SECOND": 1,
    "CORRECTION": True, "BIAS_CORRECTION": True, "DECAY": True, "DECOUPLED": True,
    "MAXIMIZE": False, "LR_ON_DEVICE": False, "SCALED": False, "SKIP_INF": False,
    "STOCHASTIC": False, "ALIGNED": True, "BLOCK": 1024, "BLOCKS": 16, "STAGES": cuda.STAGES,
}  # fmt: skip
HALF = {"P": tl.bfloat16, "G": tl.bfloat16, "STOCHASTIC": True}
EVERYTHING = {
    "MAXIMIZE": True, "DECOUPLED": False, "SCALED": True, "SKIP_INF": True, "LR_ON_DEVICE": True,
    "ALIGNED": False, "GAIN": 2,
}  # fmt: skip
FORMS = {
    "FilterAdam": FLOAT,
    "FilterAdam, derived, bfloat16": FLOAT | HALF | {"SECOND": cuda.SECOND["derived"]},
    "SGDF, every flag": FLOAT | EVERYTHING | {"SECOND": 0},
    "the filter by itself, constant gain": FLOAT
    | {"KIND": cuda.KINDS[ESTIMATE], "SECOND": 0, "GAIN": cuda.GAIN[0]},
    "FilterAdam, bfloat16 state": BF16_STATE,
    "FilterAdam, fluctuation, 8 bits": CODES | {"SECOND": cuda.SECOND["fluctuation"]},
    "Momentum, bfloat16 state": BF16_STATE | {"KIND": cuda.KINDS[MOMENTUM], "SECOND": 0},
    "Momentum": FLOAT | {"KIND": cuda.KINDS[MOMENTUM], "SECOND": 0},
    "FilterAdam, 8 bits, bfloat16": CODES | HALF,
    "FilterAdam, derived, 8 bits, every flag": CODES
    | EVERYTHING
    | {"SECOND": cuda.SECOND["derived"], "WHOLE_ROWS": False},
    "the filter by itself, 8 bits": CODES | {"KIND": cuda.KINDS[ESTIMATE], "SECOND": 0},
}


def instructions(form):
    """How many PTX instructions the kernel has for this form on an H100 or H200."""
    constants = {**PLAIN, **form}
    kernel = device.update_kernel
    signature = {
        name: "constexpr" if name in constants else POINTERS.get(name, "fp32")
        for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": 1 if form["M"] == tl.int8 else 4}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return len(re.findall(r"^\s+(?:@%p\d+ )?[a-z].*;$", compiled.asm["ptx"], re.MULTILINE))


if __name__ == "__main__":
    for name, form in FORMS.items():
        print(f"{name}: {instructions(form)}")
