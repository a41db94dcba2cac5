"""Build a stand-in for the Ascend runtime (ACL) in which device memory is host memory.

The real ``torch_npu`` wheel imports against it, reports one device, allocates, copies and
synchronises. It has no kernels: ``simulated_npu.py`` supplies those.

Usage: python build_stub_acl.py OUT_DIR        (needs gcc, nm and strings; torch_npu installed)
"""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

SONAMES = ("ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "opapi", "runtime")

PRELUDE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int allocate(void **p, size_t n) { return posix_memalign(p, 512, n ? n : 512) ? 1 : 0; }
"""

# Functions that must do something; every other symbol returns 0 (ACL_SUCCESS).
BODIES = {
    "aclrtMalloc": "int aclrtMalloc(void **p, size_t n, int policy) { return allocate(p, n); }",
    "aclrtMallocAlign32": "int aclrtMallocAlign32(void **p, size_t n, int policy) { return allocate(p, n); }",
    "aclrtFree": "int aclrtFree(void *p) { free(p); return 0; }",
    "aclrtMallocHost": "int aclrtMallocHost(void **p, size_t n) { return allocate(p, n); }",
    "aclrtFreeHost": "int aclrtFreeHost(void *p) { free(p); return 0; }",
    "aclrtMemcpy": "int aclrtMemcpy(void *d, size_t m, const void *s, size_t n, int k) { memmove(d, s, n); return 0; }",
    "aclrtMemcpyAsync": "int aclrtMemcpyAsync(void *d, size_t m, const void *s, size_t n, int k, void *q) { memmove(d, s, n); return 0; }",
    "aclrtMemset": "int aclrtMemset(void *d, size_t m, int v, size_t n) { memset(d, v, n); return 0; }",
    "aclrtMemsetAsync": "int aclrtMemsetAsync(void *d, size_t m, int v, size_t n, void *q) { memset(d, v, n); return 0; }",
    "aclrtGetDeviceCount": "int aclrtGetDeviceCount(uint32_t *n) { *n = 1; return 0; }",
    "aclrtGetDevice": "int aclrtGetDevice(int32_t *d) { *d = 0; return 0; }",
    "aclrtGetSocName": 'const char *aclrtGetSocName(void) { return "Ascend910B1"; }',
    "aclrtGetMemInfo": "int aclrtGetMemInfo(int kind, size_t *f, size_t *t) { *f = 8ull << 30; *t = 16ull << 30; return 0; }",
    "aclrtCreateContext": "int aclrtCreateContext(void **c, int d) { *c = malloc(8); return 0; }",
    "aclrtGetCurrentContext": "int aclrtGetCurrentContext(void **c) { static int one; *c = &one; return 0; }",
    "aclrtGetPrimaryCtxState": "int aclrtGetPrimaryCtxState(int d, uint32_t *f, int *a) { if (f) *f = 0; *a = 1; return 0; }",
    "aclrtCreateStream": "int aclrtCreateStream(void **s) { *s = malloc(8); return 0; }",
    "aclrtCreateStreamWithConfig": "int aclrtCreateStreamWithConfig(void **s, uint32_t p, uint32_t f) { *s = malloc(8); return 0; }",
    "aclrtStreamQuery": "int aclrtStreamQuery(void *s, int *st) { *st = 0; return 0; }",
    "aclrtCreateEvent": "int aclrtCreateEvent(void **e) { *e = malloc(8); return 0; }",
    "aclrtCreateEventWithFlag": "int aclrtCreateEventWithFlag(void **e, uint32_t f) { *e = malloc(8); return 0; }",
    "aclrtCreateEventExWithFlag": "int aclrtCreateEventExWithFlag(void **e, uint32_t f) { *e = malloc(8); return 0; }",
    "aclrtQueryEventStatus": "int aclrtQueryEventStatus(void *e, int *s) { *s = 1; return 0; }",
    "aclrtQueryEventWaitStatus": "int aclrtQueryEventWaitStatus(void *e, int *s) { *s = 1; return 0; }",
    "aclrtGetSysParamOpt": "int aclrtGetSysParamOpt(int o, int64_t *v) { *v = 0; return 0; }",
    "aclrtGetStreamOverflowSwitch": "int aclrtGetStreamOverflowSwitch(void *s, uint32_t *f) { *f = 0; return 0; }",
    "aclrtReserveMemAddress": "int aclrtReserveMemAddress(void **p, size_t n, size_t a, void *e, uint64_t f) { return posix_memalign(p, 2 << 20, n) ? 1 : 0; }",
    "aclrtMallocPhysical": "int aclrtMallocPhysical(void **h, size_t n, void *prop, uint64_t f) { *h = malloc(8); return 0; }",
    "aclGetRecentErrMsg": 'const char *aclGetRecentErrMsg(void) { return ""; }',
    "aclGetCompileoptSize": "size_t aclGetCompileoptSize(int o) { return 256; }",
    "aclGetCompileopt": 'int aclGetCompileopt(int o, char *v, size_t n) { strncpy(v, "enable", n); return 0; }',
}


def needed_symbols(lib_dir: Path) -> set[str]:
    """ACL symbols that libtorch_npu links against or looks up by name."""
    linked = subprocess.run(
        ["nm", "-D", "--undefined-only", lib_dir / "libtorch_npu.so", lib_dir / "libtensorpipe.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    text = subprocess.run(
        ["strings", "-n", "5", lib_dir / "libtorch_npu.so"], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in linked.splitlines() if " U " in line}
    names |= set(text.split("\n"))
    return {n for n in names if re.fullmatch(r"(acl(?!nn|prof[A-Z]{2}$)|Msprof|rt[A-Z])[A-Za-z0-9]+", n)}


def main(out: Path) -> None:
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("torch_npu is not installed in this interpreter")
    lib_dir = Path(spec.submodule_search_locations[0]) / "lib"
    names = needed_symbols(lib_dir) | set(BODIES)
    out.mkdir(parents=True, exist_ok=True)
    source = out / "stub_acl.c"
    source.write_text(PRELUDE + "\n".join(BODIES.get(n) or f"long {n}(void) {{ return 0; }}" for n in sorted(names)))
    for soname in SONAMES:
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", "-o", out / f"lib{soname}.so", source, f"-Wl,-soname,lib{soname}.so"],
            check=True,
        )
    path = shlex.quote(f"{out}:{lib_dir}")
    print(f"export LD_LIBRARY_PATH={path} TORCH_DEVICE_BACKEND_AUTOLOAD=0 TASK_QUEUE_ENABLE=0")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
