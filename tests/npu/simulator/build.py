"""Build the simulated device: the Ascend runtime in C, and what launches kernels on it in C++.

Usage: python build.py OUT_DIR      (needs gcc, g++, nm and strings; torch and torch_npu installed)
Prints the shell line that sets the environment in which torch_npu finds it.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
# All of them are one library, so that they share one state: the others are empty and name it as what they need.
RUNTIME = "ascendcl"
OTHERS = ("hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "opapi", "runtime")
WARNINGS = ("-Wall", "-Wextra", "-Wno-builtin-declaration-mismatch")
# No queue of the package's own in front of ours; infinities and NaN as on current devices.
ENVIRONMENT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TASK_QUEUE_ENABLE": "0", "INF_NAN_MODE_ENABLE": "1"}


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is not installed in this interpreter")
    return Path(spec.submodule_search_locations[0])


def needed_symbols(lib: Path) -> set[str]:
    """ACL symbols that libtorch_npu links against or looks up by name."""
    linked = run("nm", "-D", "--undefined-only", lib / "libtorch_npu.so", lib / "libtensorpipe.so")
    names = {line.split()[-1] for line in linked.splitlines() if " U " in line}
    names |= set(run("strings", "-n", "5", lib / "libtorch_npu.so").split("\n"))
    return {
        name for name in names if re.fullmatch(r"(acl(?!nn|prof[A-Z]{2}$)|Msprof|rt[A-Z]|Hccl[A-Z])[A-Za-z0-9]+", name)
    }


def build_runtime(out: Path, torch_npu: Path) -> None:
    """Compile the runtime; what it does not define succeeds and does nothing."""
    acl = torch_npu / "include/third_party"
    objects = []
    for source in sorted((HERE / "runtime").glob("*.c")):
        objects.append(out / f"{source.stem}.o")
        includes = (f"-I{acl}/acl/inc", f"-I{acl}/hccl/inc", f"-I{acl}/hccl/inc/hccl")
        run("gcc", "-std=gnu11", "-O2", "-fPIC", "-c", *WARNINGS, *includes, "-o", objects[-1], source)
    defined = {line.split()[-1] for line in run("nm", "--defined-only", *objects).splitlines() if " T " in line}
    rest = out / "rest.c"
    rest.write_text(
        "\n".join(f"long {name}(void) {{ return 0; }}" for name in sorted(needed_symbols(torch_npu / "lib") - defined))
    )
    library = out / f"lib{RUNTIME}.so"
    run(
        "gcc", "-shared", "-fPIC", "-w", "-pthread", "-o", library, *objects, rest, "-lm", f"-Wl,-soname,{library.name}"
    )
    for name in OTHERS:
        link = ("-Wl,--no-as-needed", f"-L{out}", f"-l{RUNTIME}", f"-Wl,-soname,lib{name}.so")
        run("gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", out / f"lib{name}.so", *link)


def build_launcher(out: Path, torch: Path, torch_npu: Path) -> None:
    """Compile what launches kernels; the only part that needs torch's headers."""
    acl = torch_npu / "include/third_party"
    includes = [torch / "include", torch / "include/torch/csrc/api/include", torch_npu / "include", acl / "acl/inc"]
    includes += [acl / "hccl/inc", HERE / "runtime", Path(sysconfig.get_path("include"))]
    together = out / "launcher.cpp"  # torch's headers take most of the time: they are read once
    together.write_text("".join(f'#include "{source}"\n' for source in sorted((HERE / "launcher").glob("*.cpp"))))
    flags = ("-std=c++20", "-O1", "-g0", "-fPIC", "-w", *(f"-isystem{path}" for path in includes))
    libraries = (
        f"-L{torch / 'lib'}",
        f"-L{torch_npu / 'lib'}",
        f"-L{out}",
        "-ltorch_npu",
        "-ltorch_cpu",
        "-lc10",
        f"-l{RUNTIME}",
    )
    run("g++", "-shared", *flags, "-o", out / "liblauncher.so", together, *libraries)


def main(out: Path) -> None:
    torch, torch_npu = folder_of("torch"), folder_of("torch_npu")
    out.mkdir(parents=True, exist_ok=True)
    build_runtime(out, torch_npu)
    build_launcher(out, torch, torch_npu)
    settings = {
        "LD_LIBRARY_PATH": f"{out}:{torch_npu / 'lib'}",
        "NPU_SIM_LAUNCHER": str(out / "liblauncher.so"),
        **ENVIRONMENT,
    }
    print("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
