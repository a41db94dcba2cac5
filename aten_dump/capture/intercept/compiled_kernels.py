"""Kernels that inductor generated, recorded as calls of their own (``compile="kernels"``).

Theory of operation
    Inductor makes a module of Python for each graph: it allocates memory, calls generated kernels and torch's own, and
    takes views. What it calls are globals of that module. From the first step of a recording to its last, those that
    no dispatcher sees are replaced by functions that record the call and run the same: a generated kernel is an op
    whose ``out`` are the buffers that it writes, an allocation is ``aten::empty_strided``, a view ``aten::as_strided``.
    So all that writes to memory in compiled code is seen, and its links are those of any other program.

    A kernel of a graph that was compiled before the recording began is not known, nor is one that C++ code calls: it
    is run, and what compiled code does in this step is recorded as with ``compile="opaque"``.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final

import torch

from ...store.records import (
    GRAPH,
    KERNEL,
    STAGE,
    TREE_DICT,
    TREE_LIST,
    TREE_NODE,
    TREE_TUPLE,
    Graph,
    Kernel,
    Stage,
    Tree,
)
from ..calls.op_entries import OpEntry
from ..calls.watched_ops import WatchedOp, watch
from ..interrupts import runs_program
from ..naming.call_name import ATEN, BACKWARD, CallName
from ..naming.op_schemas import OpPlan
from ..recorder import StepRecorder, Watch
from ..step.threads import ThreadState
from ..torch_internals.engine import len_dispatch_stack
from ..torch_internals.fx_nodes import NodeFacts, NodeName
from ..torch_internals.graph_stages import Decomposed
from ..torch_internals.inductor import CODE_CACHE, LOWERING, LoweredGraph, Lowerings, Site
from ..torch_internals.tracing import is_compiling
from ..values.argument_encoding import encode_leaf
from .when_imported import WhenImported

_EMPTY: Final = torch.ops.aten.empty_strided.default
_VIEW: Final = torch.ops.aten.as_strided.default
_OUT: Final = "out"
_WRAPPER: Final = "OptimizedModule"
_NOWHERE: Final = 1 << 30  # position of an argument that is given by name
_GENERATED: Final = ("cpp_", "triton_")  # how the names of generated kernels begin
_ALLOCATES: Final = "empty_strided_cpu"
_REINTERPRETS: Final = "reinterpret_tensor"


class CompiledKernels:
    """Records the kernels in code that inductor compiles while it is installed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lowerings = Lowerings(self._add, self._failed)
        self._import = WhenImported(LOWERING, self._lowerings.install)
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []  # where, name, what was there, ours
        self._originals: dict[tuple[int, str], Any] = {}  # before ours: graphs of equal code share a module
        self._names: Counter[str] = Counter()
        self._stages = StageRecords()
        self._warned = False

    def install(self) -> None:
        """Begin to watch inductor, and the kernels that it has made already."""
        if LOWERING in sys.modules:
            self._lowerings.install()
        else:
            self._import.install()
        cache = getattr(sys.modules.get(CODE_CACHE), "PyCodeCache", None)
        for module in getattr(cache, "modules", ()):
            self._add_unknown(module.__dict__)

    def remove(self) -> None:
        """Leave inductor, and the modules that it made, as they were."""
        self._import.remove()
        self._lowerings.remove()
        replaced, self._replaced = self._replaced, []
        for scope, name, before, ours in reversed(replaced):
            if scope.get(name) is ours:
                scope[name] = before
        self._originals.clear()

    def _replace(self, scope: dict[str, Any], name: str, ours: Callable[..., Any]) -> None:
        self._replaced.append((scope, name, scope[name], ours))
        scope[name] = ours

    def _original(self, scope: dict[str, Any], name: str) -> Any:
        return self._originals.setdefault((id(scope), name), scope[name])

    def _failed(self, error: Exception) -> None:
        """Inductor is another one than is known here: its kernels cannot be recorded."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"aten_dump: not all of compiled code is recorded: torch {torch.__version__} does not show it as is "
                f"known here ({type(error).__name__}: {error})",
                stacklevel=2,
            )

    # -- modules that inductor made

    def _add(self, module: ModuleType, graph: LoweredGraph) -> None:
        """A graph was compiled: replace what its module calls."""
        scope = module.__dict__
        if not graph.is_seen or scope.get(_ALLOCATES) is None:
            self._replace(scope, "call", self._unknown(graph.name, self._original(scope, "call")))
            return
        self._names[graph.name] += 1
        again = self._names[graph.name]
        name = graph.name if again == 1 else f"{graph.name}_{again}"
        recorded = _RecordedGraph(self._watch, graph, name, module, self._stages)
        for name in graph.kernels:
            if callable(scope.get(name)):
                self._replace(scope, name, recorded.kernel(name, self._original(scope, name)))
        self._replace(scope, "call", recorded.call(self._original(scope, "call")))
        self._replace(scope, _ALLOCATES, self._seen(self._original(scope, _ALLOCATES), _EMPTY, _allocation))
        self._replace(scope, _REINTERPRETS, self._seen(self._original(scope, _REINTERPRETS), _VIEW, _view))

    def _add_unknown(self, scope: dict[str, Any]) -> None:
        for name, found in list(scope.items()):
            if name.startswith(_GENERATED) and callable(found):
                self._replace(scope, name, self._unknown(name, self._original(scope, name)))

    def _unknown(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a kernel of which nothing is known."""

        @runs_program
        def run(*args: Any, **kwargs: Any) -> Any:
            recorder = self._watch.recorder
            if recorder is not None:
                recorder.kernels_unseen(name)
            return kernel(*args, **kwargs)

        return run

    def _seen(self, original: Callable[..., Any], func: Any, arguments: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a function below the dispatcher, and records the op that does the same."""

        @runs_program
        def run(*args: Any) -> Any:
            recorder = self._watch.recorder
            thread = None if recorder is None else _recorded_thread(recorder)
            if recorder is None or thread is None:
                return original(*args)
            given, named = arguments(*args)
            op = watch(recorder.ops, thread, recorder.ops.entry_of(func), given, named)
            result = original(*args)
            if op is not None:
                op.end(given, named, result, None)
            return result

        return run


def _allocation(size: Any, stride: Any, dtype: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (list(size), list(stride)), {"dtype": dtype, "device": torch.device("cpu")}


def _view(tensor: Any, size: Any, stride: Any, offset: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (tensor, list(size), list(stride), tensor.storage_offset() + offset), {}


def _recorded_thread(recorder: StepRecorder) -> ThreadState | None:
    """Return the state of this thread; None if what it does now is not recorded."""
    thread = recorder.step.threads.running()
    if thread.own.depth or not len_dispatch_stack() or is_compiling():
        return None
    return thread


class _RecordedGraph:
    """A graph whose kernels are recorded."""

    def __init__(self, watch: Watch, graph: LoweredGraph, name: str, module: ModuleType, stages: StageRecords) -> None:
        self._watch = watch
        self.stages = stages
        self.graph = graph
        self.name = name
        again: Counter[str] = Counter()
        self._sites: dict[int, _RecordedSite] = {}  # by line of the generated module
        source = module.__file__ or ""
        with open(source, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                site = graph.sites.get(line.strip())
                if site is not None:
                    again[site.kernel] += 1
                    n = again[site.kernel]
                    self._sites[number] = _RecordedSite(self, site, name if n == 1 else f"{name}_{n}")

    def call(self, run_graph: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs the graph and records what it is given and returns; its kernels are calls within."""
        name = CallName(f"inductor.graph:{self.name}", "Graph", self.name)

        @runs_program
        def run(args: Any) -> Any:
            recorder = self._watch.recorder
            thread = None if recorder is None else _recorded_thread(recorder)
            call = None
            if recorder is not None and thread is not None:
                call = recorder.calls.begin(thread, name, (args,), {}, None)
            if recorder is None or thread is None or call is None:
                return run_graph(args)
            try:
                result = run_graph(args)
            except BaseException as error:
                recorder.calls.end(thread, call, None, error)
                raise
            recorder.calls.end(thread, call, result, None)
            return result

        return run

    def kernel(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a kernel and records the call."""

        @runs_program
        def run(*args: Any) -> Any:
            recorder = self._watch.recorder
            thread = None if recorder is None else _recorded_thread(recorder)
            if recorder is None or thread is None:
                return kernel(*args)
            frame = sys._getframe(1)
            site = self._sites.get(frame.f_lineno)
            if site is None or site.site.kernel != name:
                recorder.kernels_unseen(name)
                return kernel(*args)
            begun = site.begin(recorder, thread, args, frame)
            if begun is None:
                return kernel(*args)
            op, given, named = begun
            try:
                result = kernel(*args)
            except BaseException as error:
                op.end(given, named, None, error)
                raise
            op.end(given, named, None, None)
            return result

        return run


class _RecordedSite:
    """A call of a kernel in the generated module."""

    def __init__(self, graph: _RecordedGraph, site: Site, overload: str) -> None:
        self.site = site
        self._graph = graph
        arguments = list(enumerate(site.arguments))
        self._given = [(at, held) for at, one in arguments for held in one.reads]
        self._out = [(at, one.writes) for at, one in arguments if one.writes is not None]
        self._otherwise = [  # what is no argument as it is: whether it is written, which one, and where it lies
            (into, place, held.lies)
            for into, known in enumerate((self._given, self._out))
            for place, (_, held) in enumerate(known)
            if held.lies is not None
        ]
        names = _names([site.arguments[at].name for at, _ in self._given])
        name = CallName(f"inductor::{site.kernel}.{overload}", "Kernel", site.kernel)
        self.plan = OpPlan(name, (*names, _OUT), ((_NOWHERE, _OUT),), None, undefined_output=False)

    def begin(
        self, recorder: StepRecorder, thread: ThreadState, args: tuple[Any, ...], frame: FrameType
    ) -> tuple[WatchedOp, tuple[Any, ...], dict[str, Any]] | None:
        """Record what a kernel is given, which is about to run.

        Returns:
            The call, what the kernel reads of its arguments, and by name what it writes and the sizes of its graph;
            None where the recorder failed.
        """
        try:
            entry = recorder.ops.entry_made(self, self._new_entry)
            symbols = self._graph.graph.symbols
            sizes = frame.f_locals if symbols else {}
            given, out = ([args[at] for at, _ in known] for known in (self._given, self._out))
            for into, place, lies in self._otherwise:
                with thread.own:
                    (given, out)[into][place] = lies.of((given, out)[into][place], sizes)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            recorder.step.failed(error)
            return None
        named = {_OUT: out, **{name: sizes.get(name) for name in symbols}}
        op = watch(recorder.ops, thread, entry, tuple(given), named)
        return None if op is None else (op, tuple(given), named)

    def _new_entry(self, recorder_ops: Any) -> OpEntry:
        """Write to a step what the kernel computes."""
        step, site, graph = recorder_ops.step, self.site, self._graph.graph
        entry = OpEntry(self, self.plan, step.counters.of(self.plan.name), is_simple=False)
        entry.number = step.interner.op(ATEN, self.plan.name, self.plan.arguments)
        interner = step.interner
        number = recorder_ops.graphs.get(id(self._graph))
        if number is None:
            number = recorder_ops.graphs[id(self._graph)] = len(recorder_ops.graphs) + 1
            step.emit(Graph(GRAPH, number, self._graph.name, [tree_of(node, interner) for node in graph.nodes]))
            self._graph.stages.write(step, graph, recorder_ops.stages)
        given, made = ([held.nodes for _, held in known] for known in (self._given, self._out))
        code = interner.text(graph.kernels[site.kernel])
        step.emit(Kernel(KERNEL, entry.number, number, code, given, made))
        entry.locate = self._locate
        return entry

    def _locate(self, op: Any, interner: Any) -> None:
        """Put a call where the program has the code that the kernel was made of."""
        site = self.site
        around = op.fqn.removesuffix(_WRAPPER).rstrip(".")  # its graph does not know the module that torch puts around
        op.fqn = ".".join(filter(None, (around, site.module)))
        op.module = interner.text(op.fqn)
        links, graph = op.ops.kernel_links, self._graph.name.replace("_backward", "_forward")
        if op.phase == BACKWARD:
            op.forward = links.forward_of(op.forward, graph, site.made_nodes)
        else:
            links.add(op.parent, graph, site.made_nodes, op.id)
        if site.frames:
            op.stack = interner.traced_stack(site.frames, 0 if op.phase == BACKWARD else op.stack)


def _names(names: list[str]) -> tuple[str, ...]:
    """Return names of which each is there once: of memory that is read in parts, all but the first have a number."""
    again: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}_{again[name]}" if again[name] else name)
        again[name] += 1
    return tuple(found)


class StageRecords:
    """Writes each stage of a graph once, to the first step that runs it."""

    def __init__(self) -> None:
        self._written: dict[int, Any] = {}  # stages that are on file, by identity

    def write(self, step: Any, graph: LoweredGraph, known: dict[str, dict[int, int]]) -> None:
        """Write the stages of a graph that are not on file.

        Args:
            step: that runs it.
            graph: that was lowered.
            known: of the step: the places of the nodes that were written, by identity, by number of the captured graph.
        """
        number = graph.name.partition("_")[0]
        places = known.setdefault(number, {})
        for stage in graph.stages:
            if id(stage) in self._written:
                continue
            self._written[id(stage)] = stage
            new = [node for node in stage.nodes if id(node) not in places]
            places |= {id(node): place for place, node in enumerate(new, len(places))}
            nodes = [tree_of(node, step.interner) for node in new]
            order = [places[id(node)] for node in stage.nodes]
            decomposed = [_tree_of_decomposed(one) for one in stage.decomposed]
            step.emit(Stage(STAGE, len(self._written), number, stage.part, stage.made_by, nodes, order, decomposed))


def tree_of(node: NodeFacts, interner: Any) -> Tree:
    """Return a node as it is written to an index; see `records.Graph`."""
    return (
        TREE_LIST,
        node.name,
        node.target,
        _encoded(list(node.args)),
        _encoded(dict(node.kwargs)),
        None if node.shape is None else (TREE_LIST, *node.shape),
        None if node.dtype is None else str(node.dtype).removeprefix("torch."),
        node.symbol,
        node.module,
        interner.traced_stack(node.frames),
    )


def _encoded(item: Any) -> Tree:
    if isinstance(item, NodeName):
        return (TREE_NODE, item.name)
    if isinstance(item, (list, tuple)):
        return (TREE_TUPLE if isinstance(item, tuple) else TREE_LIST, *map(_encoded, item))
    if isinstance(item, dict):
        return (TREE_DICT, *(part for key, value in item.items() for part in (str(key), _encoded(value))))
    return encode_leaf(item)


def _tree_of_decomposed(one: Decomposed) -> Tree:
    return (TREE_LIST, one.op, _encoded(list(one.args)), _encoded(dict(one.kwargs)), _encoded(one.made))
