"""The records of an index file, each a tuple that msgpack writes as it stands.

Theory of operation
    An index (``index.msgpack``) is a stream of msgpack arrays. Element 0 of each is its kind, the rest are the fields
    below in order. Capture makes them on the training thread, of plain ints, strings, lists and None; packing one is a
    single C call on the writer's thread. Those made for each op are bare tuples, half as dear to make and to pack as
    these ``NamedTuple``s (`sink.named`). Text that repeats (op names, paths, devices) is interned once in a ``Text``
    or ``Op`` record and named by id afterwards; ids count from 1 within the file, 0 stands for "none". A reader MUST
    skip kinds and elements that it does not know: that is how the format grows. Trailing fields with defaults may lack.

``docs/format.md`` specifies the same table for readers in other languages; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias, get_args

FORMAT_VERSION: Final = 1

HEADER: Final = 1
TEXT: Final = 2
OP: Final = 3
FRAME: Final = 4
STACK: Final = 5
STORAGE: Final = 6
VALUE: Final = 7
SHARD: Final = 8
BLOB: Final = 9
DATA: Final = 10
STATISTICS: Final = 11
HASH: Final = 12
SAME: Final = 13
OPEN: Final = 14
CALL: Final = 15
SAVED: Final = 16
GRADIENT: Final = 17
NOTE: Final = 18
CHECK: Final = 19
COMMIT: Final = 20
RANDOM: Final = 21
PACKED: Final = 22
FETCHED: Final = 23
MODE: Final = 24
OPTIMIZER_GROUPS: Final = 25
PARAMETERS: Final = 26
GRAPH: Final = 27
KERNEL: Final = 28
STAGE: Final = 29

# Codes inside records. The position in the tuple is the code on disk.
CALL_KINDS: Final = ("aten", "api", "module", "node")
PHASES: Final = ("forward", "recompute", "backward", "optimizer")
LAYOUTS: Final = ("strided", "compact", "sample")

FAILED: Final = "failed"  # code of the Note of a recorder that failed and recorded no more
# Codes of the Notes that a recovery leaves.
RECOVERED: Final = "recovered"
DAMAGED: Final = "damaged"  # beside it: what was lost had been written, and has changed since

# Bits of Value.flags.
UNDEFINED: Final = 1  # memory that nothing has written yet (torch.empty): it has no contents to record
CONJUGATE: Final = 2  # the conj bit is set: the stored bytes are not yet conjugated
NEGATIVE: Final = 4  # the neg bit is set: the stored bytes are not yet negated
REQUIRES_GRAD: Final = 8
OPAQUE: Final = 16  # no bytes of its own to read: meta, fake, a subclass with its own dispatch

# Bits of Same.facts.
SAME_STATISTICS: Final = 1
SAME_HASH: Final = 2

# Tags of the argument trees in Call.args, Call.kwargs, Call.outputs and Call.written. A tree is None, a
# bool, int, float or str as they are, or a list whose element 0 is one of these.
TREE_VALUE: Final = 0  # [0, value id]
TREE_LIST: Final = 1  # [1, item, ...]
TREE_TUPLE: Final = 2  # [2, item, ...]
TREE_DICT: Final = 3  # [3, key, item, key, item, ...]; a key is a str, or an int, or the repr of another key
TREE_DTYPE: Final = 4  # [4, "float32"]
TREE_DEVICE: Final = 5  # [5, "cuda:0"]
TREE_MEMORY_FORMAT: Final = 6  # [6, "channels_last"]
TREE_LAYOUT: Final = 7  # [7, "strided"]
TREE_GENERATOR: Final = 8  # [8, device, seed]; seed is an int or None where it cannot be asked for
TREE_COMPLEX: Final = 9  # [9, real, imag]
TREE_OBJECT: Final = 10  # [10, "package.Class"]: seen, not recorded further
TREE_BYTES: Final = 11  # [11, repr of a value that has no form of its own: an int over 64 bit, an enum, a slice]
TREE_NODE: Final = 12  # [12, "mul_3"]: what a node of a compiled graph made; in Graph and Stage records alone

Tree = Any  # a recursive msgpack value; see TREE_* above
TreePath = tuple[Any, ...]  # steps from the root of a tree: positions and keys


class Header(NamedTuple):
    """First record of an index."""

    kind: int
    format_version: int
    step: int
    rank: int
    world_size: int
    start_unix_ns: int
    pid: int
    config: dict[str, Any]  # the DumpConfig as plain values: level, data, io, hash, statistics (names in order), ...


class Text(NamedTuple):
    kind: int
    id: int
    text: str


class Op(NamedTuple):
    """What a call calls. Names of calls are rendered from ``prefix`` and ``api``."""

    kind: int
    id: int
    call_kind: int  # index into CALL_KINDS
    op: str  # "aten::add_.Tensor", "torch.nn.functional.linear", class of a module, name of an autograd node
    prefix: str  # "Aten", "Functional", "Module", "Node", ...
    api: str  # "add_", "linear", the fqn of a module, the node's name
    arguments: list[str]  # argument names of the schema, in order; empty where unknown


class Frame(NamedTuple):
    kind: int
    id: int
    file: int  # Text id
    line: int
    function: int  # Text id
    user: bool  # False for frames of torch, of installed packages and of the standard library


class Stack(NamedTuple):
    """A source stack as a linked list from the innermost frame outwards."""

    kind: int
    id: int
    parent: int  # Stack id of the caller, 0 at the outermost frame
    frame: int


class Storage(NamedTuple):
    kind: int
    id: int
    nbytes: int  # when first seen
    device: int  # Text id
    memory: int = 0  # id of the storage in whose memory it lies, 0 where it has memory of its own
    offset: int = 0  # bytes into that memory


class Value(NamedTuple):
    """One tensor at one moment: a storage, its write version, and a geometry on it."""

    kind: int
    id: int
    storage: int  # Storage id, 0 where the tensor has none (sparse, opaque)
    version: int  # writes to the storage seen before this moment
    offset: int  # storage offset in elements of dtype
    dtype: int  # Text id, "float32"
    shape: list[int]
    stride: list[int]  # in elements
    flags: int = 0  # bits UNDEFINED ... OPAQUE
    extra: dict[str, Any] | None = None  # {"layout": "sparse_coo", "parts": {"indices": value id}, "class": ..., ...}

    @property
    def place(self) -> tuple[object, ...]:
        """The storage and the geometry on it, whatever is written there."""
        return self.storage, self.offset, self.dtype, tuple(self.shape), tuple(self.stride)


class Shard(NamedTuple):
    """A shard file was begun: its data starts at byte ``header_bytes`` of the file."""

    kind: int
    number: int  # file shard-%05d.safetensors; while it grows the name ends in .partial
    header_bytes: int  # 8 + N of the safetensors format


class Blob(NamedTuple):
    """Bytes that were written to a shard. In the shard's header the tensor is named str(id)."""

    kind: int
    id: int
    shard: int
    offset: int  # bytes from the start of the shard's data
    nbytes: int
    dtype: str  # safetensors' name: "F32"; bytes without such a dtype are "U8" or split in parts
    shape: list[int]
    checksum: bytes  # xxh3_64 of the bytes, big endian


class Data(NamedTuple):
    """Where the bytes of a value are."""

    kind: int
    value: int
    blob: int
    offset: int  # bytes into the blob of the value's first element
    layout: int  # 0 strided: apply the value's stride; 1 compact: elements in row-major order; 2: the first N of those


class Statistics(NamedTuple):
    kind: int
    value: int
    numbers: list[Any]  # in the order of Header.config["statistics"]; None where not defined; [re, im] for complex


class Hash(NamedTuple):
    kind: int
    value: int
    digest: bytes  # of the elements in row-major order; algorithm in Header.config["hash"]


class Same(NamedTuple):
    """A value has the statistics and/or hash of another one, as it has the same elements."""

    kind: int
    value: int
    other: int
    facts: int  # bits SAME_STATISTICS, SAME_HASH


class Open(NamedTuple):
    """A module call or a collective began. Its ``Call`` record follows when it ends; without one it was cut short."""

    kind: int
    id: int
    parent: int
    op: int
    n: int
    phase: int
    thread: int
    start_ns: int
    stack: int
    module: int
    args: Sequence[Tree] = ()  # of a collective
    kwargs: dict[str, Tree] | None = None


class Call(NamedTuple):
    """One execution of an op, a Python API, a module or an autograd node, written when it ended."""

    kind: int
    id: int  # counts from 1 in the order in which calls began
    parent: int  # Call id, 0 at the root
    op: int  # Op id
    n: int  # the n of the call's name
    repeat: int  # 0, or k for the k-th further backward of the same forward call; then ".k" ends the name
    phase: int  # index into PHASES
    thread: int  # small number, 0 is the thread that entered the mode
    start_ns: int  # from the step's start
    duration_ns: int
    sequence_nr: int | None = None  # autograd's: of the node made (forward) or running (backward)
    stack: int = 0  # Stack id, 0 none
    module: int = 0  # Text id of the fqn of the innermost module, 0 none
    forward: int = 0  # Call id of the forward call that this one belongs to, 0 none
    args: Sequence[Tree] = ()
    kwargs: dict[str, Tree] | None = None
    outputs: Tree = None
    written: Sequence[Tree] | None = None  # [name, tree of the values after the write, ...] of arguments written
    error: str | None = None  # "RuntimeError: ..." when the call raised


class Saved(NamedTuple):
    """Values that the autograd node of a forward call keeps alive until its backward."""

    kind: int
    call: int
    node: str
    values: list[int]


class Gradient(NamedTuple):
    """The gradient of a parameter when a backward ended."""

    kind: int
    name: str  # fqn of the parameter
    value: int
    call: int  # the AccumulateGrad call, 0 unknown


class Random(NamedTuple):
    """The state of the random generator that a call was about to draw from."""

    kind: int
    call: int  # Call id
    device: int  # Text id, of the generator
    blob: int  # Blob id: the bytes of torch.Generator.get_state(), 0 where they were not kept


class Note(NamedTuple):
    """Something the reader of the dump must know: what was not seen, not stored, or went wrong."""

    kind: int
    code: str
    message: str
    count: int  # type: ignore[assignment]  # hides tuple.count


class Check(NamedTuple):
    """All bytes of the index before this record are whole; written after every batch."""

    kind: int
    nbytes: int  # bytes of the index before this record
    checksum: bytes  # xxh3_64 of the bytes since the previous check record (its own bytes included), big endian


class Commit(NamedTuple):
    """Last record: the step is complete."""

    kind: int
    calls: int
    values: int
    blobs: int
    blob_bytes: int
    shards: list[int]  # bytes of each shard file, in order of number
    seconds: dict[str, float]  # what the dump cost: capture, statistics, copy, wait, write


class Packed(NamedTuple):
    """A tensor was saved for backward, as a saved-tensor hook saw it."""

    kind: int
    id: int
    call: int  # innermost call of Python that was open, 0 none
    value: int  # 0: a Python number, as a tensor
    at_ns: int  # since the step began


class Fetched(NamedTuple):
    """A saved tensor was fetched for backward."""

    kind: int
    packed: int
    call: int  # the node's, 0 unknown
    at_ns: int


class Mode(NamedTuple):
    """How a thread runs, from a call on until the next record of that thread; written where it changes."""

    kind: int
    thread: int
    call: int  # Call id of the first call; it may have no record
    grad: bool  # torch.is_grad_enabled()
    training: bool | None  # of the innermost module; nil outside of modules


class OptimizerGroups(NamedTuple):
    """Hyperparameters that parameter groups of an optimizer have in common; of groups that differ, a record each."""

    kind: int
    optimizer: int  # counts the optimizers of the step from 0, in the order of their first steps
    name: str  # of its class
    groups: list[int]  # positions in param_groups
    at_ns: int  # since the step began
    ended: bool  # as the recorded step ended, where they had changed since the optimizer's step began
    settings: dict[str, Tree] | None  # lr, weight_decay, betas, ...; numbers, texts and lists of them alone


class Parameters(NamedTuple):
    """The parameters of one optimizer that stepped, of all that did not, or those of the models that require grad."""

    kind: int
    optimizer: int  # as in OptimizerGroups; -1: the models; -2: optimizers that are alive and did not step
    names: list[str]  # fqn of each parameter; "" for one that is in no known model


class Graph(NamedTuple):
    """A graph that a compiler made kernels of, as it was before it was lowered to them."""

    kind: int
    id: int
    name: str  # as torch's logs have it: "0_forward"
    # Each [1, name, target, [1, argument, ...], [3, keyword, argument, ...], [1, size, ...] or nil, dtype or nil, size
    # that it is, fqn of the module, Stack id], in execution order.
    nodes: Sequence[Tree]


class Kernel(NamedTuple):
    """What a kernel of compiled code computes: the part of a graph between what it is given and what it makes."""

    kind: int
    op: int  # Op id of its calls
    graph: int  # Graph id
    code: int  # Text id of its source
    given: list[str]  # for each argument, the nodes that made it, with spaces between; "" of a size
    made: list[str]  # for each tensor of ``out``, the node whose result it is; "" where that is not known


class Stage(NamedTuple):
    """A graph on its way through a compiler: as it was captured, or as a pass left it."""

    kind: int
    id: int
    graph: str  # what the names of the `Graph`s made of it begin with: "0" of "0_forward" and "0_backward"
    part: str  # "joint" for forward and backward together, else "forward", "backward" or "inference"
    made_by: str  # "captured", "partitioned", "other passes", or "pass " and its name
    nodes: Sequence[Tree]  # that no stage of `graph` had before, each as in Graph; the last of a graph is its "output"
    order: list[int]  # all its nodes, each by its place among the nodes of the stages of `graph`, counted from 0
    decomposed: Sequence[Tree]  # each [1, op, [1, argument, ...], [3, keyword, argument, ...], [1, node made, ...]]


Record: TypeAlias = (
    Header | Text | Op | Frame | Stack | Storage | Value | Shard | Blob | Data | Statistics | Hash | Same
    | Open | Call | Saved | Gradient | Note | Check | Commit | Random | Packed | Fetched | Mode
    | OptimizerGroups | Parameters | Graph | Kernel | Stage
)  # fmt: skip

RECORD_TYPES: Final[dict[int, type[tuple[Any, ...]]]] = dict(enumerate(get_args(Record), HEADER))  # in order of kind
