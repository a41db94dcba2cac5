"""What inductor's generated kernels compute: asked of it while it lowers a graph, as nothing of it is kept.

Theory of operation
    Inductor lowers an FX graph node by node to buffers, groups these into kernels, and writes a module of Python that
    allocates memory and calls the kernels. While it does so, one can see which buffer holds the result of which node
    (`GraphLowering.run_node`), and which buffers a kernel reads and writes, and in which order it is given them
    (`KernelGroup.call_kernel`). A kernel is then known by nodes alone: it is given the results of some and makes those
    of others, and what it computes is the graph between them. The same code may be called for several groups of
    nodes, so that it is the call which has a meaning: it is known by its text, as each buffer has a name of its own.

    A buffer that several kernels write (a scatter into zeros, the parts of a `cat`) holds something else after each.
    What cannot be named by a node is left without a meaning, and nobody judges it.
    A graph that comes out of inductor's caches is not lowered: while this watches, they are off.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch

from .fx_nodes import NodeFacts, TracedFrame, facts_of
from .graph_stages import GraphStages, Stage, name_of_graph
from .patches import Patch

CODE_CACHE: Final = "torch._inductor.codecache"  # has the modules of generated code
LOWERING: Final = "torch._inductor.graph"
_IR: Final = "torch._inductor.ir"
_CPP: Final = "torch._inductor.codegen.cpp"
_CACHES: Final = (("torch._inductor.config", "fx_graph_cache"), ("torch._functorch.config", "enable_autograd_cache"))
_SYMBOL: Final = re.compile(r"[A-Za-z_]\w*")
_IN_OUT: Final = "in_out"
_NAME: Final = "Placeholder.KERNEL_NAME"  # in the source of a kernel that has no name yet


_Made = dict[str, list[Any]]  # by node: all that holds its result in inductor's own terms


class Geometry(NamedTuple):
    """How a buffer lies; sizes may be expressions."""

    size: list[Any]
    stride: list[Any]
    offset: Any = 0  # from where the argument of the kernel begins

    def of(self, tensor: torch.Tensor, sizes: Mapping[str, Any]) -> torch.Tensor:
        """Return the memory of a tensor as this buffer, where sizes have these values."""
        size, stride = ([_number(one, sizes) for one in part] for part in (self.size, self.stride))
        return tensor.as_strided(size, stride, tensor.storage_offset() + _number(self.offset, sizes))


def _number(expression: Any, sizes: Mapping[str, Any]) -> int:
    if type(expression) is int:
        return expression
    return int(expression.xreplace({symbol: sizes[symbol.name] for symbol in expression.free_symbols}))


class Held(NamedTuple):
    """What memory that a kernel is given holds, before or after it runs."""

    nodes: str  # that made it, with spaces between; "" where that is not known
    lies: Geometry | None = None  # where it lies otherwise than the argument


class Argument(NamedTuple):
    """An argument of a generated kernel."""

    name: str  # "in_ptr0", "out_ptr1", "in_out_ptr0", "ks0"
    reads: tuple[Held, ...]  # of a size one; none of memory that the kernel has written itself, under another name
    writes: Held | None = None  # what it leaves there, of one node


class Site(NamedTuple):
    """A place where a generated kernel is called."""

    kernel: str  # its name in the generated module
    arguments: tuple[Argument, ...]
    module: str
    frames: tuple[TracedFrame, ...]
    made_nodes: tuple[int, ...]  # autograd's numbers of what it computes, forward or backward; the last op's first


class LoweredGraph:
    """A graph that was compiled.

    Attributes:
        name: as torch's logs have it (``0_forward``); the same again where a program compiles anew.
        nodes: in execution order.
        symbols: names of the sizes that differ from call to call.
        sites: the calls of its kernels, by their text in the generated module.
        kernels: their source code, by name.
        is_seen: False where the kernels are called by C++ code, and by nothing that can be watched.
        stages: the graph on its way here, the first first; what was captured is that of forward and backward together.
    """

    def __init__(self, name: str, nodes: list[NodeFacts], sites: dict[str, Site], kernels: dict[str, str]) -> None:
        self.stages: list[Stage] = []
        self.name = name
        self.nodes = nodes
        self.symbols = sorted({n.symbol for n in nodes if n.target == "placeholder" and _SYMBOL.fullmatch(n.symbol)})
        self.sites = sites
        self.kernels = kernels
        self.is_seen = True


class Lowerings:
    """Watches graphs being lowered, and hands each on with the module that was made of it."""

    def __init__(self, report: Callable[[ModuleType, LoweredGraph], None], failed: Callable[[Exception], None]) -> None:
        """Begin; `report` gets each module that was made, `failed` the error where inductor is not as it is known."""
        self._report = report
        self._failed = failed
        self._patches: list[Patch] = []
        self._has_cpp = False
        self._stages = GraphStages(failed)
        self._copies: list[tuple[Any, Any]] = []  # that were made for the node that is lowered
        self._made: WeakKeyDictionary[Any, _Made] = WeakKeyDictionary()  # by graph: what nodes were lowered to
        self._sites: WeakKeyDictionary[Any, dict[str, Site]] = WeakKeyDictionary()

    def install(self) -> None:
        """Begin to watch; inductor was imported."""
        graph = sys.modules[LOWERING].GraphLowering
        kernel = sys.modules[_IR].ExternKernel
        self._patches = [
            Patch(kernel, "copy_input", self._copy_input(kernel.copy_input)),
            Patch(graph, "run_node", self._run_node(graph.run_node)),
            Patch(graph, "compile_to_module", self._compile_to_module(graph.compile_to_module)),
            *(_CacheOff(module, name) for module, name in _CACHES if hasattr(sys.modules.get(module), name)),
        ]
        self._stages.install()

    def remove(self) -> None:
        """Leave inductor as it was."""
        self._stages.remove()
        patches, self._patches = self._patches, []
        for patch in reversed(patches):
            patch.undo()
        self._has_cpp = False

    def _run_node(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_node(graph: Any, node: Any) -> Any:
            self._copies.clear()
            result = original(graph, node)
            made = self._made.setdefault(graph, {})
            made[node.name] = [result]
            for source, copy in self._copies:
                if copy is result:  # into the layout that its users want
                    made[node.name].append(source)
                else:  # of a view that it is given
                    found = (name for name, known in made.items() if any(_is_same(source, one) for one in known))
                    made.get(next(found, ""), []).append(copy)
            return result

        return run_node

    def _copy_input(self, original: Callable[..., Any]) -> Any:
        def copy_input(source: Any) -> Any:
            copy = original(source)
            self._copies.append((source, copy))
            return copy

        return staticmethod(copy_input)

    def _compile_to_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_to_module(graph: Any) -> Any:
            cpp = sys.modules.get(_CPP)
            if cpp is not None and not self._has_cpp:
                self._has_cpp = True
                self._patches.append(
                    Patch(cpp.KernelGroup, "call_kernel", self._call_kernel(cpp.KernelGroup.call_kernel))
                )
            module = original(graph)
            try:
                self._report(module, self._lowered(graph))
            except Exception as error:  # noqa: BLE001 - the program is compiled, whatever this makes of it
                self._failed(error)
            return module

        return compile_to_module

    def _call_kernel(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_kernel(group: Any, wrapper: Any, kernel: str) -> Any:
            graph = sys.modules["torch._inductor.virtualized"].V.graph
            try:
                text, site = _site_of(graph, self._made.get(graph, {}), group, wrapper, kernel)
                self._sites.setdefault(graph, {})[text] = site
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)
            return original(group, wrapper, kernel)

        return call_kernel

    def _lowered(self, graph: Any) -> LoweredGraph:
        nodes = [facts_of(node) for node in graph.module.graph.nodes if node.op != "output"]
        codes = {name: code.replace(_NAME, "kernel") for code, name in graph.wrapper_code.src_to_kernel.items()}
        name = name_of_graph() or "graph"
        found = LoweredGraph(name, nodes, self._sites.pop(graph, {}), codes)
        found.stages = self._stages.until(name, graph.module.graph)
        found.is_seen = not graph.cpp_wrapper
        self._made.pop(graph, None)
        return found


class _CacheOff(Patch):
    """A cache of compiled graphs that is not used for a while."""

    def __init__(self, module: str, name: str) -> None:
        self._config = sys.modules[module]
        self._key = name
        self._was = getattr(self._config, name)
        setattr(self._config, name, False)

    def undo(self) -> bool:
        setattr(self._config, self._key, self._was)
        return True


def _site_of(graph: Any, made: _Made, group: Any, wrapper: Any, kernel: str) -> tuple[str, Site]:
    """Return the text of a call, and what it is given and makes."""
    buffers = _Buffers(graph, made, group.scheduled_nodes)
    definitions, call_args, _ = group.args.cpp_argdefs()
    names_in_place = {
        one.inner_name: one.other_names for one in group.args.inplace_buffers.values() if hasattr(one, "inner_name")
    }
    arguments = []
    for definition, given in zip(definitions, call_args, strict=True):
        name = definition.split()[-1].lstrip("*")
        if "*" not in definition:
            arguments.append(Argument(name, (Held(""),)))
        elif definition.startswith("const"):
            arguments.append(Argument(name, buffers.read_from(given)))
        else:
            in_place = names_in_place.get(name, [given])
            kept = [one for one in in_place[1:] if one not in graph.inplaced_to_remove]  # others stay in registers
            arguments.append(_written(buffers, name, given, (in_place[0], kept[-1] if kept else in_place[0])))
    text = f"{kernel}({', '.join(map(str, call_args))})"
    facts = [facts_of(node) for node in buffers.origins()]
    module = next((one.module for one in facts if one.module), "")
    frames = next((one.frames for one in facts if one.frames), ())
    numbers = dict.fromkeys(
        node.meta["seq_nr"]
        for node in buffers.origins()
        if node.meta.get("seq_nr", -1) >= 0 and not _copies_to_input(node)  # that has the number of the last op
    )
    return text, Site(kernel, tuple(arguments), module, frames, tuple(numbers))


def _written(buffers: _Buffers, name: str, given: Any, names: tuple[str, str]) -> Argument:
    """Return what a kernel reads and leaves in memory that it may write.

    Args:
        buffers: of the graph.
        name: of the argument.
        given: the buffer that the call names.
        names: what the memory holds as the kernel begins, and after.
    """
    first, last = names
    writes = buffers.node_left_in(last)
    is_made = buffers.is_made_here(first)
    if first == last and first != given and not is_made:  # what it would have left there has no reader
        held = Held(buffers.nodes_before(first).partition(" ")[0], buffers.geometry(first))
        return Argument(name, (held,), held)
    is_read = (name.startswith(_IN_OUT) and not is_made) or buffers.adds_to(first, writes)
    held = Held(buffers.nodes_before(first), buffers.geometry(first) if first != given else None)
    return Argument(name, (held,) if is_read else (), Held(writes))


class _Buffers:
    """Which nodes have made what lies in the buffers of a graph, as one kernel sees them."""

    def __init__(self, graph: Any, made: _Made, scheduled: list[Any]) -> None:
        self._graph = graph
        self._nodes = {node.name: node for node in graph.module.graph.nodes}
        self._order = {name: place for place, name in enumerate(self._nodes)}
        self._by_buffer: dict[str, list[str]] = {}
        self._parts: dict[str, dict[str, Geometry]] = {}  # of buffers that are written in parts
        for name, results in made.items():
            is_input = name in self._nodes and self._nodes[name].op == "placeholder"
            found = (buffer for result in results for buffer in _buffers_of(result))
            for buffer in dict.fromkeys((name, *found) if is_input else found):
                self._by_buffer.setdefault(buffer, []).append(name)
            for part, node, lies in _parts_of(self._nodes.get(name), results[0]):
                self._by_buffer.setdefault(part, []).append(node)
                self._parts.setdefault(results[0].data.data.name, {})[part] = lies
        self._real: dict[str, str] = dict(graph.scheduler.mutation_real_name)
        self._outputs = [buffer for node in scheduled for buffer in node.get_outputs()]
        self._here = {buffer.get_name() for buffer in self._outputs}
        self._origins = [node for buffer in self._outputs for node in buffer.node.get_origins()]

    def is_made_here(self, buffer: str) -> bool:
        parts = self._parts.get(buffer, {})
        return buffer in self._here or (bool(parts) and self._here.issuperset(parts))

    def read_from(self, buffer: str) -> tuple[Held, ...]:
        """Return what a kernel reads of a buffer that others wrote: all, or some of its parts."""
        if self.is_made_here(buffer):
            return ()
        parts = self._parts.get(buffer, {})
        if self._here.isdisjoint(parts):
            return (Held(self.nodes_before(buffer)),)
        return tuple(Held(self.nodes_before(part), lies) for part, lies in parts.items() if part not in self._here)

    def origins(self) -> list[Any]:
        """Return the nodes of the graph that the kernel is made of, the last first."""
        known = {node for node in self._origins if node.name in self._order and node.op == "call_function"}
        return sorted(known, key=lambda node: -self._order[node.name])

    def geometry(self, buffer: str) -> Geometry:
        return _geometry(self._graph.get_buffer(buffer).get_layout())

    def nodes_in(self, buffer: str) -> list[str]:
        """Return the nodes whose results a buffer holds, before or after it was written in place."""
        return self._by_buffer.get(buffer, [])

    def nodes_before(self, buffer: str) -> str:
        """Return the nodes whose results a buffer may hold as the kernel begins, with spaces between."""
        writes_in_place = any(self._real.get(name) == buffer for name in self._here)
        left = self.node_left_in(buffer) if writes_in_place else ""
        before = [node for node in self.nodes_in(buffer) if node != left]
        return " ".join(before or (self._begun_with(buffer) if left else []))

    def adds_to(self, buffer: str, writes: str) -> bool:
        """Return True if what a kernel leaves in a buffer is made of what was there: a scatter reads what it writes."""
        node = self._nodes.get(writes)
        if node is None or self.is_made_here(buffer) or _copies_to_input(node) or not node.args:
            return False
        return getattr(node.args[0], "name", None) in self.nodes_before(buffer).split()

    def node_left_in(self, buffer: str) -> str:
        """Return the node whose result the kernel leaves in a buffer, "" where it is not known."""
        last = next((one for one in reversed(self._outputs) if self._real_name(one) == buffer), None)
        if last is None:
            return ""
        name = last.get_name()
        writes_in_place = name in self._real
        later = [one for one, real in self._real.items() if real == buffer and one not in self._here]
        found = [] if later else self.nodes_in(name)
        if not found and writes_in_place:
            origins = {node.name for node in last.node.get_origins()}
            found = [node for node in self.nodes_in(buffer) if node in origins and self._is_computed(node)]
            found = found or self._copied_to(buffer)
        if not found and later and not writes_in_place:
            found = self._begun_with(buffer)
        return max(found, key=lambda node: self._order.get(node, 0), default="")

    def _real_name(self, output: Any) -> str:
        name: str = output.get_name()
        return self._real.get(name, name)

    def _is_computed(self, name: str) -> bool:
        return bool(self._nodes[name].op == "call_function")

    def _copied_to(self, buffer: str) -> list[str]:
        """Return the nodes that copy something to an input of the graph."""
        copies = filter(_copies_to_input, self._nodes.values())
        return [node.name for node in copies if getattr(node.args[0], "name", None) == buffer]

    def _begun_with(self, buffer: str) -> list[str]:
        """Return what a buffer holds before something is scattered into it: the first argument of that node."""
        writers = [self._nodes[name] for name in self.nodes_in(buffer) if self._is_computed(name)]
        if len(writers) == 1 and writers[0].args and hasattr(writers[0].args[0], "name"):
            return [writers[0].args[0].name]
        return []


def _copies_to_input(node: Any) -> bool:
    return str(node.target).startswith("aten.copy_")


def _is_same(one: Any, other: Any) -> bool:
    one, other = (getattr(item, "data", None) if type(item).__name__ == "TensorBox" else item for item in (one, other))
    return one is other and one is not None


def _buffers_of(result: Any) -> Iterator[str]:
    """Yield the name of the buffer that holds what a node was lowered to, as it is; nothing of a view of one."""
    box: Any = getattr(result, "data", None) if type(result).__name__ == "TensorBox" else result
    if type(box).__name__ == "ReinterpretView" and _lies_alike(box.get_layout(), box.data.get_layout()):
        box = box.data
    if type(box).__name__ == "StorageBox":
        name = getattr(box.data, "name", None)
        if isinstance(name, str):
            yield name


def _lies_alike(one: Any, other: Any) -> bool:
    """Return True if two layouts have the same elements in the same places."""
    if one.offset != other.offset or list(one.size) != list(other.size):
        return False
    strides = zip(one.size, one.stride, other.stride, strict=True)
    return all(mine == theirs for size, mine, theirs in strides if size != 1)


def _parts_of(node: Any, result: Any) -> Iterator[tuple[str, str, Geometry]]:
    """Yield the buffers that the parts of a `cat` are written to, the nodes whose results these are, and where."""
    kernel: Any = getattr(getattr(result, "data", None), "data", None)
    if node is None or type(kernel).__name__ != "ConcatKernel" or not node.args:
        return
    items = node.args[0]
    if len(items) == len(kernel.inputs):
        for item, part in zip(items, kernel.inputs, strict=True):
            if hasattr(part, "get_name"):
                yield part.get_name(), item.name, _geometry(part.get_layout())


def _geometry(layout: Any) -> Geometry:
    """Return a layout; that of a part of a buffer begins where the buffer does."""
    if hasattr(layout, "view"):
        layout = layout.view.get_layout()
    size, stride, (offset,) = (
        [one if isinstance(one, int) or not one.is_number else int(one) for one in part]
        for part in (layout.size, layout.stride, [layout.offset])
    )
    return Geometry(size, stride, offset)
