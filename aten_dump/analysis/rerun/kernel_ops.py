"""A kernel that a compiler generated, as an op: it computes the part of the compiler's graph that it is made of.

Theory of operation
    The nodes of the graph between what a kernel is given and what it makes are run one after the other, each an op of
    torch's. Run in float64 this is the function that the kernel stands for, without any rounding between; run in the
    recorded dtypes it is what a program as written would do, and says how far an honest kernel may be off. That is
    one draw of rounding, which may be lucky where large numbers cancel. So a kernel that seems wrong is run in float64
    a few times more, each result of a node rounded up or down by chance (Monte Carlo arithmetic; Parker, 1997).
    A kernel may leave what no node stands for (sums of squares, of which the next kernel makes a variance). What reads
    that is computed from what the kernel before was given.
    Each node's op is asked for as the op of any call of a dump (`allowed_ops`), so that no graph runs anything else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from ...dump import COMPILED_GRAPH, Call, CompiledKernel, GraphNode, NodeRef, Value
from ...errors import AtenDumpError, ReplayError
from ...references.fused_op import FusedOp
from ...torch_names import DTYPES, has_kernel, register_ops_of_inductor
from ..composed_ops import composed
from .allowed_ops import allowed_op, is_by_element
from .argument_checks import check_arguments
from .shared_memory import wide

_CPU: Final = torch.device("cpu")
_PRIMS: Final = "prims::"
_SIZES: Final[dict[str, Callable[..., Any]]] = {  # what is computed of sizes, and what takes a tensor out of several
    f"_operator.{name}": getattr(operator, name)
    for name in (
        "getitem",
        "add",
        "sub",
        "mul",
        "floordiv",
        "mod",
        "neg",
        "truediv",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    )
}


def op_of(node: GraphNode) -> Any:
    """Return the op that a node calls.

    Raises:
        ReplayError: it may not be run, or this process does not have it; the message says which.
    """
    if is_of_inductor(node) and not has_kernel(node.op):
        register_ops_of_inductor()
    return allowed_op(node.op)


def is_of_inductor(node: GraphNode) -> bool:
    """Return True if a node calls an op that may be registered by inductor alone, and draws no random numbers."""
    return node.op.startswith(_PRIMS) and node.op not in _OWN


def kernel_op(call: Call) -> KernelOp | None:
    """Return the op of a call of a generated kernel; None of any other call."""
    kernel = call.kernel
    return None if kernel is None else KernelOp(call, kernel)


def unknown_slots(call: Call) -> frozenset[str]:
    """Return the results of a generated kernel of which nobody knows what they mean."""
    kernel = call.kernel
    made = () if kernel is None else kernel.made
    return frozenset(f"mutated.out.{place}" for place, name in enumerate(made) if not name)


def behind_unknown(call: Call) -> dict[str, Value]:
    """Return what the makers of a kernel's nameless inputs were given, by node: the kernel is computed from that."""
    kernel = call.kernel
    found: dict[str, Value] = {}
    for names, item in zip(kernel.given, call.inputs[0], strict=False) if kernel is not None else ():
        maker = item.producer[0] if isinstance(item, Value) and not names and item.producer is not None else None
        if maker is None or maker.kernel is None or maker.kernel.graph != (kernel and kernel.graph):
            continue
        found |= behind_unknown(maker)
        for given, value in zip(maker.kernel.given, maker.inputs[0], strict=False):
            found |= {name: value for name in given if isinstance(value, Value)}
    return found


def numbers_given(call: Call) -> dict[str, int | float]:
    """Return the numbers that the graph of a kernel was given, by node: sizes that a backward pass keeps are some."""
    kernel, graph = call.kernel, call.parent
    if kernel is None or graph is None or not graph.op.startswith(COMPILED_GRAPH):
        return {}
    given = placeholders_given(kernel.graph_nodes.values(), graph)
    return {name: item for name, item in given.items() if isinstance(item, (int, float))}


def placeholders_given(nodes: Iterable[GraphNode], graph: Call) -> dict[str, Any]:
    """Return what the placeholders among the nodes of a graph were given by a call of it, by name."""
    names = [node.name for node in nodes if node.op == "placeholder"]
    args = graph.inputs[0]
    given = args[0] if args and isinstance(args[0], (list, tuple)) else ()
    return dict(zip(names, given, strict=True)) if len(given) == len(names) else {}


class KernelOp(FusedOp):
    """What the kernel of a call computes.

    Attributes:
        behind: by node, what is known beside the arguments of the call (`behind_unknown`).
        rounding: seed of chance by which results of nodes are rounded, in float64; 0 rounds none.
    """

    def __init__(self, call: Call, kernel: CompiledKernel) -> None:
        args, kwargs = call.inputs
        named = zip(call.arguments, args, strict=False)
        texts = [f"{'Tensor' if isinstance(item, Value) else 'Scalar'} {name}" for name, item in named]
        texts += ["*", "Tensor(a!)[] out", *(f"int {name}" for name in kwargs if name != "out")]
        try:
            super().__init__(f"inductor::kernel({', '.join(texts)}) -> ()")
        except RuntimeError as error:
            raise ReplayError(f"its arguments are none of a generated kernel: {error}") from error
        self._op = call.op
        self._kernel = kernel
        self.behind: Mapping[str, torch.Tensor] = {}
        self.rounding = 0
        self._numbers = numbers_given(call)
        outs = kwargs.get("out")
        self._dtypes = [v.dtype for v in (outs if isinstance(outs, list) else []) if isinstance(v, Value)]
        if len(self._dtypes) != len(kernel.made) or len(args) != len(kernel.given):
            raise ReplayError("it was recorded with other arguments than its kernel has")

    def name(self) -> str:
        """Return its name, as the dump has it."""
        return self._op

    def __call__(self, *args: Any, out: Sequence[torch.Tensor], **sizes: int) -> None:
        """Compute what the kernel does into `out`; tensors of which it is not known what they mean are left alone.

        Raises:
            ReplayError: it is made of something that cannot be run.
        """
        is_wide = any(tensor.dtype != dtype for tensor, dtype in zip(out, self._dtypes, strict=True))
        known: dict[str, Any] = {
            name: item for names, item in zip(self._kernel.given, args, strict=True) for name in names
        }
        nodes = self._kernel.nodes_beyond(self.behind) if self.behind else self._kernel.nodes
        known |= self._numbers
        nodes = tuple(node for node in nodes if node.name not in known)
        unread = {
            node.name: unread_input(node) for node in nodes if node.op == "placeholder" and node.size not in sizes
        }
        known |= {name: made.double() if is_wide else made for name, made in unread.items()}
        run = NodeRun({**known, **self.behind}, sizes, is_wide, self.rounding)
        for node in nodes:
            if node.name not in unread:
                run.run(node)
        written = {tensor.untyped_storage()._cdata for tensor in out}
        results = [(tensor, run.known[name]) for name, tensor in zip(self._kernel.made, out, strict=True) if name]
        if unread and any(bool(made.isnan().any()) for _, made in results):
            raise ReplayError(f"its graph reads {', '.join(unread)}, which was not recorded as an input of the kernel")
        for tensor, made in [(tensor, _kept(made, written)) for tensor, made in results]:
            is_reshaped = made.shape != tensor.shape and made.numel() == tensor.numel()
            tensor.copy_(made.reshape(tensor.shape) if is_reshaped else made)


def unread_input(node: GraphNode) -> torch.Tensor:
    """Return what stands for an input of a graph that a kernel is not given: it can be asked for its shape alone.

    All of it is NaN, so that it shows if a result depends on it.

    Raises:
        ReplayError: it has no shape of numbers, or its dtype has no NaN.
    """
    dtype = DTYPES.get(node.dtype or "")
    if dtype is not None and dtype.is_floating_point and node.shape is not None:
        shape = [size for size in node.shape if isinstance(size, int)]
        if len(shape) == len(node.shape):
            return torch.full((), torch.nan, dtype=dtype).expand(shape)
    raise ReplayError(f"its graph reads {node.name}, which was not recorded as an input of the kernel")


def _kept(made: torch.Tensor, written: Container[int]) -> torch.Tensor:
    """Return a result that stays as it is while memory is written: it may be a view of what the kernel was given."""
    return made.clone() if made.untyped_storage()._cdata in written else made


class NodeRun:
    """Nodes of a graph, run one after the other."""

    def __init__(self, known: dict[str, Any], sizes: Mapping[str, int], is_wide: bool, rounding: int = 0) -> None:
        self.known = known
        self._given = frozenset(known)
        self._sizes = sizes
        self._is_wide = is_wide
        self._chance = torch.Generator().manual_seed(rounding) if rounding and is_wide else None

    def run(self, node: GraphNode) -> None:
        """Run a node on what was made before it."""
        if node.size in self._sizes:
            self.known[node.name] = self._sizes[node.size]
            return
        if node.op == "placeholder":
            raise ReplayError(f"its graph reads {node.name}, which was not recorded as an input of the kernel")
        args = [self._item(item) for item in node.args]
        kwargs = {name: self._item(item) for name, item in node.kwargs.items()}
        made = self._run(node, args, kwargs)
        self.known[node.name] = made if self._chance is None else _rounded(made, node, args, self._chance)

    def fits(self, node: GraphNode) -> bool:
        """Return False if the op of a node refuses the shapes of its inputs, or reaches beyond their memory.

        How much memory lies around an input of the graph is not known, so nothing reaches beyond that.
        """
        without = {name: _without_elements(item) for name, item in self.known.items()}
        meta = NodeRun(without, self._sizes, self._is_wide)
        try:
            op = op_of(node)
            args, kwargs = meta._item(node.args), {name: meta._item(item) for name, item in node.kwargs.items()}
            made = op(*args, **kwargs)
        except (AtenDumpError, NotImplementedError, KeyError):  # it may not be run, or reads what is not known
            return True
        except (RuntimeError, IndexError):
            return False
        reads_given = any(isinstance(item, NodeRef) and item.name in self._given for item in node.args)
        return reads_given or not isinstance(made, torch.Tensor) or not _reaches_beyond(made)

    def _run(self, node: GraphNode, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if node.op in _SIZES:
            return _SIZES[node.op](*args)
        if node.op.startswith("aten::copy_"):
            return args[1].to(args[0].dtype).expand(args[0].shape)
        own = _OWN.get(node.op)
        if own is not None:
            made = own(*args, **kwargs)
            return made.double() if self._is_wide and made.is_floating_point() else made
        op = op_of(node)
        check_arguments(op, args, kwargs)
        dtype = DTYPES.get(node.dtype or "")
        if self._is_wide and dtype is not None and dtype.is_floating_point and is_by_element(op):
            args = [_in_float64(item) for item in args] if _is_of_integers(args) else args
        if op._schema.is_mutable:  # other nodes may still want what it is given
            args = [item.clone() if isinstance(item, torch.Tensor) else item for item in args]
        return composed(op, _CPU)(*args, **kwargs)

    def _item(self, item: Any) -> Any:
        if isinstance(item, NodeRef):
            return self.known[item.name]
        if isinstance(item, (list, tuple)):
            return [self._item(entry) for entry in item]
        if isinstance(item, torch.dtype):
            return wide(item) if self._is_wide else item
        return _CPU if isinstance(item, torch.device) else item


def _reaches_beyond(made: torch.Tensor) -> bool:
    """Return True if a tensor without elements, a view, has some that lie beyond the memory that it is a view of."""
    steps = zip(made.shape, made.stride(), strict=True)
    reach = made.storage_offset() + sum((size - 1) * step for size, step in steps) + 1
    return made.numel() > 0 and reach * made.itemsize > made.untyped_storage().nbytes()


def _without_elements(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return [_without_elements(entry) for entry in item]
    return item.to("meta") if isinstance(item, torch.Tensor) else item


def _is_of_integers(args: list[Any]) -> bool:
    tensors = [item for item in args if isinstance(item, torch.Tensor)]
    return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def _in_float64(item: Any) -> Any:
    return item.double() if isinstance(item, torch.Tensor) else item


def _rounded(made: Any, node: GraphNode, given: list[Any], chance: torch.Generator) -> Any:
    """Return what a node made in float64 with an error as rounding to its dtype has; views are not rounded."""
    dtype = DTYPES.get(node.dtype or "")
    if dtype is None or not isinstance(made, torch.Tensor) or made.dtype != torch.float64 or not made.numel():
        return made
    if any(isinstance(item, torch.Tensor) and item.data_ptr() == made.data_ptr() for item in given):
        return made
    error = torch.rand(made.shape, generator=chance, dtype=torch.float64) - 0.5
    return made * (1 + torch.finfo(dtype).eps * error)


# -- random numbers that inductor's own kernels make of a seed, in torch/csrc/inductor/cpp_prefix.h


def _philox(seed: int, offsets: np.ndarray[Any, np.dtype[np.uint64]]) -> list[np.ndarray[Any, np.dtype[np.uint64]]]:
    """Return the first four numbers of Philox4x32-10 at each offset (Salmon et al., 2011)."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    keys = [seed & 0xFFFFFFFF, 0]
    zero = np.zeros_like(offsets)
    state = [offsets & low, zero, zero, zero]
    for _ in range(10):
        one, other = state[0] * np.uint64(0xD2511F53), state[2] * np.uint64(0xCD9E8D57)
        state = [
            (other >> shift) ^ state[1] ^ np.uint64(keys[0]),
            other & low,
            (one >> shift) ^ state[3] ^ np.uint64(keys[1]),
            one & low,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return state


def _uniform(bits: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    made: np.ndarray[Any, np.dtype[np.float32]] = (bits & np.uint64(0x7FFFFFFF)).astype(np.float32)
    made *= np.float32(4.6566127342e-10)
    return made


def _random(size: Sequence[int], seed: torch.Tensor, mode: str, *, offset: int = 0, **_: Any) -> torch.Tensor:
    """Return the numbers of ``prims.inductor_random``."""
    count = int(np.prod(size, dtype=np.int64))
    numbers = _philox(int(seed), (np.arange(count, dtype=np.uint64) + np.uint64(offset)))
    made = _uniform(numbers[0])
    if mode == "randn":
        made = np.sqrt(-2 * np.log1p(-made.astype(np.float64))) * np.cos(
            2 * np.pi * _uniform(numbers[1]).astype(np.float64)
        )
    return torch.from_numpy(made.astype(np.float32)).reshape(list(size))


def _randint(low: int, high: int, size: Sequence[int], seed: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
    """Return the numbers of ``prims.inductor_randint``."""
    count = int(np.prod(size, dtype=np.int64))
    numbers = _philox(int(seed), (np.arange(count, dtype=np.uint64) + np.uint64(offset)))
    made = (numbers[0] | (numbers[1] << np.uint64(32))) % np.uint64(high - low)
    return torch.from_numpy(made.astype(np.int64) + low).reshape(list(size))


_OWN: Final[dict[str, Callable[..., Any]]] = {  # what these draw in compiled code is not what torch's own ops draw
    "prims::inductor_random": _random,
    "prims::inductor_randint": _randint,
}
