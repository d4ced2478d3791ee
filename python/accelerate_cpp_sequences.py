"""Programs for context parallelism, whose ranks have parts of each sequence: export_for_cpp(causal=True).

Ranks exchange keys and values in scaled_dot_product_attention, which they can if it has no mask over all positions. So masks
that only make attention causal become is_causal. Everything else that looks at several positions is refused: a rank
would compute it from its own positions, and nobody would notice.
"""
import operator

import torch
from torch.export._tree_utils import reorder_kwargs
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
ASSERTIONS = ("_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range", "sym_constrain_range_for_size")
# Operators that read the size and dtype of their tensor only.
FACTORIES = ("new_ones", "new_zeros", "new_full", "new_empty", "ones_like", "zeros_like", "full_like", "empty_like")
# Masks are compared with the causal one up to this length, so that windows are found.
LONGEST_MASK = 4097


def divide_attention(program, model, args, kwargs):
    """Replaces masks of the program's attention by is_causal. Raises ValueError for what ranks cannot compute."""
    sequence = _Sequence(program, args, kwargs)
    _refuse_windows(model, sequence.longest)
    kinds = {}
    for node in sequence.attentions:
        given = _arguments(node)
        mask = given["attn_mask"]
        if mask is None or not sequence.is_divided(node):
            continue
        if mask not in kinds:
            kinds[mask] = sequence.kind_of(mask, _module_of(node))
        given.update(attn_mask=None, is_causal=kinds[mask] == "causal")
        own = [_before_repetition(given[name]) for name in ("key", "value")]
        if not given["enable_gqa"] and all(own) and own[0].meta["val"].shape[-1] == own[1].meta["val"].shape[-1]:
            given.update(key=own[0], value=own[1], enable_gqa=True)
        node.args = tuple(given.pop(name) for name in ARGUMENTS[:3])
        node.kwargs = given
    for node in list(program.graph.nodes):
        if _name_of(node) == "_assert_tensor_metadata":
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def check_division(program, args, kwargs):
    """Compares the program's results for the example with those of two ranks, each with half of the positions. Raises ValueError
    if they differ.
    """
    sequence = _Sequence(program, args, kwargs)
    lengths = [(sequence.example + 1) // 2, sequence.example // 2]
    with torch.no_grad():
        (expected,), (other,) = (sequence.run([sequence.example], seed) for seed in range(2))
        parts = sequence.run(lengths)
    is_rough = any(value.dtype in (torch.float16, torch.bfloat16) for value in sequence.stored.values()) or torch.is_autocast_enabled(
        next((value.device.type for value in sequence.stored.values()), "cpu"))
    for index, (whole, changed, *halves) in enumerate(zip(expected, other, *parts)):
        if not isinstance(whole, torch.Tensor) or not whole.is_floating_point() or not whole.isfinite().all():
            continue
        split = [dim for dim in range(whole.dim()) if whole.shape[dim] != halves[0].shape[dim]]
        if split:
            found = torch.cat(halves, split[0]).double()
        else:
            found = sum(half.double() * length for half, length in zip(halves, lengths)) / sequence.example
        # Losses of models that were not trained are nearly equal, so what the embeddings change is the measure.
        scale = (changed.double() - whole.double()).norm()
        tolerance = (0.05 if is_rough else 1e-3) * scale + (1e-3 if is_rough else 1e-6) * whole.double().norm()
        if found.shape != whole.shape or not (found - whole.double()).norm() <= tolerance + 1e-9:
            raise ValueError(
                f"with causal=True, ranks that have parts of a sequence must compute the model's results, but result {index} would "
                f"{'differ' if split else 'not be the mean of theirs'}. Attention must be that of scaled_dot_product_attention "
                "(attn_implementation='sdpa'; nn.MultiheadAttention with need_weights=False), positions must be an input "
                "(position_ids), labels must be shifted before the model gets them, or the loss be computed outside of it, and "
                "nothing else may mix positions")


class _Sequence:
    """The sequence of a program: its length, its attention, and what the program computes for parts of it."""

    def __init__(self, program, args, kwargs):
        self.program = program
        self.attentions = [node for node in program.graph.nodes if node.target is ATTENTION]
        inner = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
        if any(node.target is ATTENTION for graph in inner if graph is not program.graph_module for node in graph.graph.nodes):
            raise ValueError("with causal=True attention must not be inside of torch.cond, a loop, torch.no_grad or torch.autocast")
        if not self.attentions:
            raise ValueError(
                "with causal=True the model must compute attention by scaled_dot_product_attention, but has none: use "
                "model.set_attn_implementation('sdpa') with Hugging Face's models, need_weights=False with nn.MultiheadAttention")
        leaves = tree_flatten((tuple(args), reorder_kwargs(dict(kwargs), program.call_spec.in_spec)))[0]
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        specs = program.graph_signature.input_specs
        users = [node for node, spec in zip(nodes, specs) if spec.kind.name == "USER_INPUT"]
        self.inputs = dict(zip(users, leaves))
        stored = {**program.constants, **program.state_dict}
        self.stored = {node: stored[spec.target] for node, spec in zip(nodes, specs) if spec.target in stored}
        self.symbol = self._length()
        self.sizes = {}
        for node, value in self.inputs.items():
            if isinstance(value, torch.Tensor):
                self.sizes.update(zip(map(_expression, node.meta["val"].shape), value.shape))
        if self.symbol not in self.sizes:
            raise ValueError(f"with causal=True an input must have a dimension of {self.symbol} positions, but none has")
        self.example = self.sizes[self.symbol]
        if self.example < 2:
            raise ValueError(f"with causal=True example inputs must have at least 2 positions, but have {self.example}")
        upper = program.range_constraints[self.symbol].upper
        self.longest = int(upper) if getattr(upper, "is_Integer", False) else None

    def _length(self):
        lengths = {}
        for node in self.attentions:
            query, key = (_expression(_arguments(node)[name].meta["val"].shape[-2]) for name in ("query", "key"))
            if query == key:
                lengths.setdefault(query, _module_of(node))
        found = ", ".join(f"{length} in {module}" for length, module in lengths.items())
        if len(lengths) != 1:
            raise ValueError(f"with causal=True all attention must be over the same positions, but their number is {found or 'none'}")
        (length,) = lengths
        if not getattr(length, "is_Symbol", False):
            raise ValueError(f"with causal=True the number of positions must be that of an input and vary (dynamic_shapes), but is {found}")
        return length

    def is_divided(self, node):
        return all(_expression(_arguments(node)[name].meta["val"].shape[-2]) == self.symbol for name in ("query", "key"))

    def kind_of(self, mask, module):
        """Whether a mask hides all later positions ("causal") or nothing ("none"), at the example's length and longer ones."""
        kind = None
        for length in {self.example, min(self.longest or LONGEST_MASK, LONGEST_MASK)}:
            try:
                found = _kind_of(self._value_of(mask, length, module), length)
            except RuntimeError:  # such as a buffer that is too short
                if length == self.example:
                    raise
                continue
            if found is None or kind not in (None, found):
                raise ValueError(
                    f"with causal=True masks must hide all later positions and no others, but that of {module} is another for {length} "
                    "positions: a window (limit the length to it by Dim(..., max=)), padding, or a bias")
            kind = found
        return kind

    def _value_of(self, mask, length, module):
        """A mask for `length` positions, which must not depend on inputs other than positions."""
        sizes = {**self.sizes, self.symbol: length}
        wanted, order = {mask}, []
        for node in reversed(list(self.program.graph.nodes)):
            if node in wanted:
                order.append(node)
                if not _is_number(node) and _name_of(node) not in FACTORIES:
                    wanted.update(node.all_input_nodes)
                elif not _is_number(node):
                    wanted.update(node.all_input_nodes[1:])
        values = {}
        for node in reversed(order):
            if _is_number(node):
                values[node] = _number(node.meta["val"], sizes)
            elif node in self.stored:
                values[node] = self.stored[node].detach()
            elif node in self.inputs:
                values[node] = self._positions(node, sizes, module)
            else:
                if _name_of(node) in FACTORIES and node.args[0] not in values:
                    like = node.args[0].meta["val"]
                    values[node.args[0]] = torch.empty([_number(size, sizes) for size in like.shape], dtype=like.dtype)
                values[node] = node.target(*map_arg(node.args, values.get), **map_arg(node.kwargs, values.get))
        return values[mask]

    def _positions(self, node, sizes, module):
        shape, example = node.meta["val"].shape, self.inputs[node]
        if _expression(shape[-1]) != self.symbol or not torch.equal(
                example.cpu(), torch.arange(self.example).to(example.dtype).expand_as(example)):
            raise ValueError(
                f"with causal=True masks must be the same for all inputs, but that of {module} depends on '{node.name}'. Leave "
                "masks out of the inputs: padding at the end needs none if its labels are ignored; positions must be "
                "0, 1, 2 ... in the example")
        return torch.arange(sizes[self.symbol], device=example.device).to(example.dtype).expand([_number(size, sizes) for size in shape])

    def run(self, lengths, seed=0):
        """The results of ranks that have so many positions each, with random numbers added to embeddings."""
        ranks = range(len(lengths))
        values = [{} for _ in ranks]
        noise = torch.Generator()
        for index, node in enumerate(self.program.graph.nodes):
            noise.manual_seed(2 * index + seed)
            if node.op == "output":
                results = tree_flatten(node.args)[0]
                return [[values[rank][result] if isinstance(result, torch.fx.Node) else result for result in results] for rank in ranks]
            if node.op == "placeholder":
                own = self._given(node, lengths, noise)
            elif node.op == "get_attr":
                own = [operator.attrgetter(node.target)(self.program.graph_module)] * len(lengths)
            elif _name_of(node) in ASSERTIONS:
                continue
            elif node.target is ATTENTION and self.is_divided(node):
                own = self._attend(node, values, lengths)
            else:
                own = [node.target(*map_arg(node.args, known.get), **map_arg(node.kwargs, known.get)) for known in values]
                if _name_of(node) == "embedding":
                    own = self._with_noise(node, own, lengths, noise)
            for known, value in zip(values, own):
                known[node] = value

    def _given(self, node, lengths, noise):
        if node in self.stored:
            return [self.stored[node].detach().clone() for _ in lengths]
        value = self.inputs[node]
        dim = self._dim_of(node)
        if dim is None:
            return [value] * len(lengths)
        own = list(value.detach().split(lengths, dim))
        return self._with_noise(node, own, lengths, noise) if value.is_floating_point() else own

    def _with_noise(self, node, values, lengths, noise):
        """Examples are often zeros, whose attention is the same whatever it attends to."""
        dim = self._dim_of(node)
        if dim is None:
            return values
        shape = list(values[0].shape)
        shape[dim] = sum(lengths)
        # As large as the embeddings, so that smaller ones, of positions, matter as well.
        like = self.stored.get(node.args[0]) if node.args else None
        scale = 1.0 if like is None else like.double().square().mean().sqrt().item()
        added = (torch.randn(shape, generator=noise) * scale).to(values[0])
        return [value + part for value, part in zip(values, added.split(lengths, dim))]

    def _dim_of(self, node):
        shape = getattr(node.meta.get("val"), "shape", ())
        return next((dim for dim, size in enumerate(shape) if _expression(size) == self.symbol), None)

    def _attend(self, node, values, lengths):
        given = [{name: map_arg(value, known.get) for name, value in _arguments(node).items()} for known in values]
        whole = {**given[0], **{name: torch.cat([own[name] for own in given], -2) for name in ARGUMENTS[:3]}}
        tensors = [whole.pop(name) for name in ARGUMENTS[:3]]
        return ATTENTION(*tensors, **whole).split(lengths, -2)


def _refuse_windows(model, longest):
    """Windows that are longer than masks that are computed."""
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        types = getattr(config, "layer_types", None) or ["sliding_attention"]
        window = getattr(config, "sliding_window", None) if "sliding_attention" in types else None
        if isinstance(window, int) and window >= LONGEST_MASK and (longest is None or longest > window):
            raise ValueError(f"with causal=True the length must be at most the window of '{name}', {window} (Dim(..., max={window})), but is "
                             f"{longest or 'unlimited'}")


def _kind_of(mask, length):
    hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
    if mask.dtype != torch.bool and not (hidden | (mask == 0)).all():
        return None
    if not hidden.any():
        return "none"
    later = torch.ones(length, length, dtype=torch.bool, device=mask.device).triu(1)
    return "causal" if mask.shape[-2:] == later.shape and (hidden == later).all() else None


def _before_repetition(node):
    """Keys or values before each of their heads is repeated for the queries that share it, or None."""
    steps = [node]
    while len(steps) < 4 and isinstance(steps[-1], torch.fx.Node) and steps[-1].args:
        steps.append(steps[-1].args[0])
    names = [_name_of(step) for step in steps[:3]]
    own = steps[1] if names[:1] == ["repeat_interleave"] else steps[-1]
    is_repetition = names[:1] == ["repeat_interleave"] or (names[0] in ("reshape", "view") and names[1:] == ["expand", "unsqueeze"])
    if not is_repetition or not isinstance(own, torch.fx.Node):
        return None
    repeated, shape = node.meta["val"].shape, own.meta["val"].shape
    is_by_head = len(shape) == 4 and (node.args[2] if names[0] == "repeat_interleave" and len(node.args) > 2 else 1) == 1
    is_by_head = is_by_head and (names[0] == "repeat_interleave" or steps[2].args[1] == 2)
    same = len(shape) == len(repeated) and all(_expression(a) == _expression(b) for a, b in zip(shape[2:], repeated[2:]))
    return own if is_by_head and same else None


def _arguments(node):
    given = dict(zip(ARGUMENTS, (None, None, None, None, 0.0, False, None, False)))
    return {**given, **dict(zip(ARGUMENTS, node.args)), **node.kwargs}


def _name_of(node):
    target = node.target
    return target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else ""


def _module_of(node):
    stack = node.meta.get("nn_module_stack") or {}
    return (list(stack.values())[-1][0] if stack else "") or "the model"


def _expression(size):
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _is_number(node):
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)) and node.op != "placeholder"


def _number(value, sizes):
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    found = value.node.expr.xreplace({symbol: size for symbol, size in sizes.items() if not isinstance(symbol, int)})
    return bool(found) if isinstance(value, torch.SymBool) else float(found) if isinstance(value, torch.SymFloat) else int(found)
