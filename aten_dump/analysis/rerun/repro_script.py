"""Writes a stand-alone script that runs one recorded op again: it needs torch and safetensors, not aten_dump.

Theory of operation
    The script opens the shard with stock safetensors, lays the bytes of each storage into one buffer so that
    arguments share memory as they did, puts the generator in the recorded state where one was recorded, runs the
    op, and prints how far the recorded result is off. With ``--float64`` it runs the op in float64 instead.
    A dump may come from a stranger, and the script is run: all that a dump says is written as a literal (`ascii` of a
    number or text, the name of a dtype of torch), never into code, comments or docstrings; the op is one that replay
    would run, named as torch's dispatcher names it; keywords are arguments of its schema.

The code is the dump's, which may come from a stranger: it is in the script as a text, and is compiled only when asked.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from ...dump import Call, CompiledKernel, GeneratorRef, GraphNode, NodeRef, ObjectRef, ReprRef, Value
from ...errors import ReplayError
from ...store.objects.url_path import UrlPath
from ...store.op_names import read_op_name
from ...store.records import LAYOUTS, Blob
from ...store.shards import shard_name
from ...torch_names import OPS_OF_INDUCTOR
from .allowed_ops import allowing
from .kernel_ops import behind_unknown, is_of_inductor, numbers_given, op_of, unread_input
from .run_op import check_call, find_op, recorded_number, recorded_slots
from .shared_memory import ALIGNMENT, Moment, check_readable, extent, moment_of

_SIGNATURE: Final = re.compile(r'extern "C"[^(]*?\bkernel\(([^)]*)\)')
_PARAMETER: Final = re.compile(r"(const )?([A-Za-z0-9_:]+)(\*?) (\w+)")
_COPIES: Final = "aten::copy_"
_PLAIN: Final = {
    "_operator.getitem": "{0}[{1}]",
    "_operator.mul": "{0} * {1}",
    "_operator.add": "{0} + {1}",
    "_operator.sub": "{0} - {1}",
    "_operator.floordiv": "{0} // {1}",
    "prims::fma": "{0} * {1} + {2}",
}
Literal = Callable[[Any], str]

_HEAD: Final = '''\
"""Runs one recorded op again, alone, and prints how far its recorded results are off.

Import the package that registers the op below, where torch does not; --float64 casts the inputs to float64 first.
A kernel that a compiler generated is run as the ops of its graph; --kernel compiles and runs its own code as well.
"""

import math
import sys

import torch
from safetensors import safe_open

DEVICE = torch.device("cpu")
FLOAT64 = "--float64" in sys.argv
RECORDED = @RECORDED@
SHARDS = @SHARDS@


def stored(shard, blob):
    """The bytes of a blob."""
    with safe_open(SHARDS[shard], framework="pt") as file:
        return file.get_tensor(str(blob)).reshape(-1).view(torch.uint8)


def view(memory, dtype, shape, stride, offset, conjugate=False, negative=False):
    tensor = memory[: memory.numel() // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(shape, stride, offset)
    tensor = torch.conj(tensor) if conjugate else tensor
    return torch._neg_view(tensor) if negative else tensor


def place(target, raw):
    """Write elements that were stored in row-major order to where they were in memory."""
    kept = tuple(slice(0, 1) if step == 0 else slice(None) for step in target.stride())
    target[kept].copy_(raw.view(target.dtype).reshape(target.shape)[kept])


def cast(item):
    """A tensor or dtype in float64, with --float64."""
    dtype = item.dtype if isinstance(item, torch.Tensor) else item
    if not FLOAT64 or not (dtype.is_floating_point or dtype.is_complex):
        return item
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return item.to(wide) if isinstance(item, torch.Tensor) else wide


def leaves(tree, slot):
    if isinstance(tree, (list, tuple)):
        for number, item in enumerate(tree):
            yield from leaves(item, f"{slot}.{number}")
    else:
        yield slot, tree


def report(slot, recorded, found):
    if not isinstance(found, torch.Tensor):
        if (recorded, found) == (None, None):
            return
        print(f"{slot}: recorded {recorded!a}, now {found!a}")
        return
    recorded, found = (t.resolve_conj().resolve_neg().contiguous() for t in (recorded, found))
    one, other = (t.reshape(-1).view(torch.uint8) for t in (recorded, found))
    same = recorded.dtype == found.dtype and torch.equal(one, other)
    x, y = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (recorded, found))
    error = float(torch.linalg.vector_norm(x - y))
    norm = float(torch.linalg.vector_norm(y)) or 1.0
    greatest = float((x - y).abs().max()) if x.numel() else 0.0
    verdict = "bit-equal" if same else "different"
    print(f"{slot}: {verdict}, relative L2 error {error / norm:.3e}, greatest {greatest:.3e}")

'''

_SLOT: Final = re.compile(r"(output|mutated)(\.[A-Za-z0-9_]+)+")


def repro_script(call: Call, *, allow_ops: Sequence[str] = ()) -> str:
    """Return the source of a script that runs an aten call again from the shards of its dump.

    Args:
        call: an aten call.
        allow_ops: as `replay` takes it.

    Raises:
        ReplayError, MissingDataError: the call cannot be run again; the message says why.
    """
    with allowing(allow_ops):
        op = find_op(call)
        check_call(op, call)
    return _Script(call, op).text()


class _Script:
    def __init__(self, call: Call, op: Any) -> None:
        self._call = call
        self._op = op
        self._rank = call.rank
        self._shards: dict[int, str] = {}
        self._lines: list[str] = []
        self._names: dict[int, str] = {}

    def text(self) -> str:
        call = self._call
        self._inputs([value for _, value in call.input_values()])
        self._generator()
        args, kwargs = call.inputs
        parts = [_literal(item, self._names) for item in args]
        parts += [f"{_keyword(self._op, name)}={_literal(item, self._names)}" for name, item in kwargs.items()]
        slot = "output" if isinstance(call.outputs, (list, tuple)) else "output.0"
        kernel = call.kernel
        if kernel is not None:
            self._lines += kernel_lines(call, kernel, lambda item: _literal(item, self._names), _path)
            self._lines.append("found = {}")
        else:
            self._lines.append("with torch.no_grad():")
            self._lines.append(f"    outputs = torch.ops.{_path(self._op)}({', '.join(parts)})")
            self._lines.append(f"found = dict(leaves(outputs, {slot!a}))")
        for name, text in self._written(args, kwargs):
            self._lines.append(f"found.update(leaves({text}, {_slot(name)}))")
        self._results()
        return self._head() + "\n".join(self._lines) + "\n"

    def _head(self) -> str:
        call, rank = self._call, self._rank
        packages = _run_packages(rank.directory.parent.parent)
        recorded = {
            "call": call.name,
            "op": call.op,
            "where": rank.where,
            "module": call.module,
            "phase": call.phase,
            "torch": str(packages.get("torch", "of unknown version")),
            "source": "" if call.source is None else f"{call.source.file}:{call.source.line}",
        }
        return _HEAD.replace("@RECORDED@", ascii(recorded)).replace("@SHARDS@", ascii(self._shards))

    def _inputs(self, values: list[Value]) -> None:
        groups: dict[Moment, list[Value]] = {}
        for value in {value.id: value for value in values}.values():
            check_readable(value)
            if value.storage == 0 or "quantized" in value.extra:
                raise ReplayError(f"{value!r} is sparse or quantized: no script can be written, use aten_dump.replay")
            groups.setdefault(moment_of(value), []).append(value)
        for number, group in enumerate(groups.values()):
            memory = f"memory{number}"
            base = self._memory(memory, group)
            for value in group:
                name = self._names[value.id] = f"tensor{len(self._names)}"
                self._lines.append(f"{name} = cast({self._view(value, memory, base)}.to(DEVICE))")

    def _memory(self, memory: str, group: list[Value]) -> int:
        """Write the lines that make the memory of a storage; returns the byte of the storage that it starts at."""
        extents = [extent(value) for value in group]
        absolute = "as_strided" in self._call.op
        base = 0 if absolute else min(low for low, _ in extents) // ALIGNMENT * ALIGNMENT
        end = max(high for _, high in extents)
        end = max(end, group[0].storage_nbytes) if absolute else end
        self._lines.append(f"{memory} = torch.zeros({-(-(end - base) // 16) * 16}, dtype=torch.uint8)")
        for value in group:
            if value.has_data and value.numel:
                self._lines += self._stored(value, memory, base)
        return base

    def _stored(self, value: Value, memory: str, base: int) -> Iterator[str]:
        data, blob = self._blob(value)
        low, high = extent(value)
        raw = f"stored({blob.shard}, {blob.id})"
        if data.layout == LAYOUTS.index("strided"):
            yield f"{memory}[{low - base}:{high - base}] = {raw}[{data.offset}:{data.offset + high - low}]"
        else:
            nbytes = value.numel * value.dtype.itemsize
            target = self._view(value, memory, base, bits=False)
            yield f"place({target}, {raw}[{data.offset}:{data.offset + nbytes}])"

    def _blob(self, value: Value) -> tuple[Any, Blob]:
        data = value.data
        if data is None:
            value.tensor()  # raises, and says why
        assert data is not None
        blob = self._rank.tables.blobs[data.blob]
        self._shard(blob.shard)
        return data, blob

    def _shard(self, number: int) -> None:
        path: Path = self._rank.directory / shard_name(number)
        if isinstance(path, UrlPath):
            dump = path.parent.parent.parent
            raise ReplayError(f"a script reads shards from a local folder, and {dump} is a URL: copy it here first")
        if not path.exists():
            raise ReplayError(f"{path} is not finished; run `aten-dump recover` first")
        self._shards[number] = str(path.absolute())

    def _view(self, value: Value, memory: str, base: int, bits: bool = True) -> str:
        offset = value.storage_offset - base // value.dtype.itemsize
        offset = 0 if value.numel == 0 else offset
        flags = ", conjugate=True" if bits and value.conjugate else ""
        flags += ", negative=True" if bits and value.negative else ""
        return f"view({memory}, {value.dtype}, {tuple(value.shape)}, {value.stride}, {offset}{flags})"

    def _generator(self) -> None:
        args, kwargs = self._call.inputs
        given = next((item for item in (*args, *kwargs.values()) if isinstance(item, GeneratorRef)), None)
        if given is not None:
            seed = "" if given.seed is None else f".manual_seed({given.seed})"
            self._lines.append(f"generator = torch.Generator(DEVICE){seed}")
        record = self._rank.tables.random.get(self._call.id)
        if record is None or record.blob not in self._rank.tables.blobs:
            return
        blob = self._rank.tables.blobs[record.blob]
        self._shard(blob.shard)
        target = "torch.default_generator" if given is None else "generator"
        self._lines.append(f"{target}.set_state(stored({blob.shard}, {blob.id}))  # as it was before the op")

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, str]]:
        names = self._call.arguments
        for name in self._call.mutated:
            position = names.index(name) if name in names else len(args)
            item = args[position] if position < len(args) else kwargs.get(name)
            yield f"mutated.{name}", _literal(item, self._names)

    def _results(self) -> None:
        for number, (slot, value) in enumerate(recorded_slots(self._call)):
            if not isinstance(value, Value):
                text = _slot(slot)
                self._lines.append(f"report({text}, {_literal(value, {})}, found.get({text}))")
            elif value.has_data and value.storage and value.numel and "quantized" not in value.extra:
                memory = f"result{number}"
                base = self._memory(memory, [value])
                text = _slot(slot)
                self._lines.append(f"report({text}, {self._view(value, memory, base)}, found.get({text}))")


def _run_packages(root: Path) -> dict[str, str]:
    from ...dump import open_dump

    found = open_dump(root).run.get("packages", {}) if (root / "run.json").exists() else {}
    return dict(found) if isinstance(found, dict) else {}


def _path(op: Any) -> str:
    """Return where an op is in ``torch.ops``, by its schema."""
    namespace, name, overload = read_op_name(op.name())
    return f"{namespace}.{name}.{overload or 'default'}"


def _keyword(op: Any, name: str) -> str:
    """Return a keyword of an op as source.

    Raises:
        ReplayError: the op has no such argument.
    """
    known = {argument.name for argument in op._schema.arguments}
    if name in known and name.isidentifier() and not keyword.iskeyword(name):
        return name
    raise ReplayError(f"{op.name()} was recorded with the keyword {name!a}; here it has {', '.join(sorted(known))}")


def _slot(slot: str) -> str:
    """Return the name of a result as source.

    Raises:
        ReplayError: no call has such a result.
    """
    if _SLOT.fullmatch(slot) is None:
        raise ReplayError(f"a result is named {slot!a}; names of results are letters, digits, dots and underscores")
    return ascii(slot)


def _literal(item: Any, names: dict[int, str]) -> str:
    """Return an argument as source.

    Raises:
        ReplayError: it has no form in source.
    """
    if isinstance(item, Value):
        return names[item.id]
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(_literal(entry, names) for entry in item) + "]"
    if isinstance(item, torch.dtype):
        return f"cast({item})"
    if isinstance(item, (torch.layout, torch.memory_format)):
        return str(item)
    if isinstance(item, torch.device):
        return 'torch.device("meta")' if item.type == "meta" else "DEVICE"
    if isinstance(item, GeneratorRef):
        return "generator"
    if isinstance(item, ReprRef):
        return ascii(recorded_number(item))
    if isinstance(item, float) and not math.isfinite(item):
        return f"float({str(item)!a})"
    if isinstance(item, complex):
        return f"complex({_literal(item.real, names)}, {_literal(item.imag, names)})"
    if item is None or isinstance(item, (bool, int, float, str)):
        return ascii(item)
    kind = item.type_name if isinstance(item, ObjectRef) else type(item).__name__
    raise ReplayError(f"an argument is a {kind!a}, which was seen and not recorded")


def kernel_lines(call: Call, kernel: CompiledKernel, literal: Literal, path: Callable[[Any], str]) -> Iterator[str]:
    """Yield the lines that compute what a kernel does into its ``out``.

    Args:
        call: of a generated kernel.
        kernel: what it computes.
        literal: writes an argument of the call as source.
        path: writes where an op is in ``torch.ops``.

    Raises:
        ReplayError: a node has no form in source.
    """
    args, kwargs = call.inputs
    behind = behind_unknown(call)
    known = {name: literal(value) for name, value in behind.items()}
    known |= {name: literal(item) for names, item in zip(kernel.given, args, strict=True) for name in names}
    known |= {name: literal(number) for name, number in numbers_given(call).items()}
    outs = [literal(out) for out in kwargs["out"]]
    given = dict(zip(call.arguments, map(literal, args), strict=False))
    types, names = _parameters(kernel.code, given, outs)
    yield f"CODE = {kernel.code!a}"
    if names:
        yield 'if "--kernel" in sys.argv:  # this compiles and runs CODE, as the dump has it: read it first'
        yield "    from torch._inductor.async_compile import AsyncCompile"
        yield f"    made = AsyncCompile().cpp_pybinding({types!a}, CODE)"
        yield f"    (made.result() if hasattr(made, 'result') else made)({', '.join(names)})"
    yield "else:" if names else "if True:"
    yield "    torch.set_grad_enabled(False)"
    nodes = [node for node in kernel.nodes_beyond(behind) if node.name not in known]
    if any(map(is_of_inductor, nodes)):
        yield f"    import {OPS_OF_INDUCTOR}"
    for number, node in enumerate(nodes):
        if node.size in kwargs:
            known[node.name] = literal(kwargs[node.size])
            continue
        if node.op == "placeholder":  # the kernel is not given it: its shape alone is asked for
            made = unread_input(node)
            yield f"    node{number} = torch.full({list(made.shape)}, float('nan'), dtype={literal(made.dtype)})"
        else:
            yield f"    node{number} = {_node(node, known, literal, path)}"
        known[node.name] = f"node{number}"
    results = [(known[name], out) for name, out in zip(kernel.made, outs, strict=True) if name]
    yield f"    made = [{', '.join(f'{made}.clone()' for made, _ in results)}]  # some are views of what is written now"
    for place, (_, out) in enumerate(results):
        yield f"    {out}.copy_(made[{place}].reshape({out}.shape))"


def _node(node: GraphNode, known: dict[str, str], literal: Literal, path: Callable[[Any], str]) -> str:
    def text(item: Any) -> str:
        if isinstance(item, NodeRef):
            if item.name not in known:
                raise ReplayError(f"its graph reads {item.name!a}, which was not recorded as an input of the kernel")
            return known[item.name]
        if isinstance(item, (list, tuple)):
            return "[" + ", ".join(map(text, item)) + "]"
        return literal(item)

    args = [text(item) for item in node.args]
    if node.op in _PLAIN:
        return _PLAIN[node.op].format(*args)
    if node.op.startswith(_COPIES):
        return f"{args[1]}.to({args[0]}.dtype).expand({args[0]}.shape)"
    op = op_of(node)
    keywords = {argument.name for argument in op._schema.arguments}
    if not keywords.issuperset(node.kwargs):
        raise ReplayError(f"{op.name()} has no argument {sorted(set(node.kwargs) - keywords)[0]!a}")
    args += [f"{name}={text(item)}" for name, item in node.kwargs.items()]
    return f"torch.ops.{path(op)}({', '.join(args)})"


def _parameters(code: str, given: dict[str, str], outs: list[str]) -> tuple[list[str], list[str]]:
    """Return the types of a kernel's parameters and what is passed for each; nothing where one was not recorded."""
    signature = _SIGNATURE.search(code)
    found = [_PARAMETER.fullmatch(part.strip()) for part in signature[1].split(",")] if signature else []
    types, names, left = [], [], list(outs)
    for one in found:
        is_out = one is not None and one[3] and not one[1]
        name = (left.pop(0) if left else None) if is_out else None if one is None else given.get(one[4])
        if one is None or name is None:
            return [], []
        types.append(f"{one[1] or ''}{one[2]}{one[3]}")
        names.append(name)
    return types, names
