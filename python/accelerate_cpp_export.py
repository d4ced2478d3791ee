"""Exports a PyTorch model for accelerate.cpp, which trains it in C++. Needs torch 2.11 to 2.15 only.

    from accelerate_cpp_export import export_for_cpp
    ids = torch.zeros(2, 16, dtype=torch.long)
    export_for_cpp(model, "model.pt2", kwargs=dict(input_ids=ids, labels=ids),
                   dynamic_shapes=dict(input_ids={0: Dim("batch"), 1: Dim("length")}, ...))

export_decoder_for_cpp() exports a causal model of Hugging Face to generate tokens with, and compile_for_cpp() compiles a model for
accelerate::load_package().

accelerate_cpp_archive.py, which says what is in the files, and accelerate_cpp_sequences.py must be beside this file.
"""
import contextlib
import copy
import inspect
import os
import re

import torch
from torch.utils._pytree import tree_leaves

from accelerate_cpp_archive import join_archives, write_archive
from accelerate_cpp_sequences import check_division, divide_attention


# Phrases of torch.export's errors, and what to do.
ADVICE = (
    (r"Cache'> in (in|out)put", "it returns a cache, so set use_cache=False in its config"),
    (r"not a known type", "forward() must return tensors, or tuples, lists, dicts or registered dataclasses of them "
     "(torch.export.register_dataclass)"),
    (r"data-dependent expression", "forward() decides by values of tensors, as at the line below. Decide by torch.where or torch.cond; "
     "if a size comes from a value, state its range by torch._check"),
    (r"specialized it to be a constant \((0|1)\)", "sizes of 0 and 1 are taken to be fixed, so give an example with at least 2 where "
     "dynamic_shapes says that the size varies; if there are 2, its code fixes the size"),
    (r"Constraints violated|specialized it to be a constant", "its code fixes sizes that dynamic_shapes says vary, or limits them. Read "
     "sizes by x.shape[0], not by len(x) or int(); give the limits to Dim(min=, max=), as suggested below; or leave out the size"),
    (r"numpy\(\) is not supported", "forward() must compute with torch, not with NumPy"),
    (r"Unsupported input type", "example arguments must be tensors, numbers, strings, None, or tuples, lists and dicts of them"),
    (r"Must provide a tree_name", "this PyTorch knows no dynamic_shapes of arguments that **kwargs collects, so name them in forward()"),
    (r"two different devices|same device", "the model and its example must be on one device"),
)


def export_for_cpp(model, path, args=(), kwargs=None, *, dynamic_shapes=None, autocast=None, causal=False, weights=True,
                   check=True):
    """Writes `model` to `path`, which ends in .pt2, and returns what it found out about it.

    args, kwargs: example arguments of model.forward(). Those that are tensors are the inputs of the model in C++, in this
        order; others are part of the program. Sizes of 1 are taken to be fixed: give at least 2 where they vary.
    dynamic_shapes: as for torch.export.export(); sizes that it does not name are those of the example. A dict may leave out
        arguments that have none.
    autocast: the dtype of the autocast in which it will be trained (mixed_precision "bf16": torch.bfloat16). A program without
        it computes something else under autocast than Python does.
    causal: True for context parallelism, which divides sequences: masks that hide later positions become is_causal of
        scaled_dot_product_attention. Positions must be an input of the model, masks must not.
    weights: False leaves them out; C++ then reads them from safetensors. Parameters may then be on the meta device (buffers
        not: they may be part of the program), which leaves nothing to check.
    check: compares gradients with those of the program; with causal=True also results with those of ranks that have half of the
        positions each.

    The program has both modes, train() and eval(). The model is left in the mode that it had; modules of a training model that
    were in eval() are in eval() in C++, too. Raises ValueError if torch.export cannot trace the model, with what to do about it,
    and if the program would compute other gradients: torch.export cannot see an autograd.Function's own backward.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile()
    kwargs = dict(kwargs or {})
    _check_request(model, str(path), args, autocast)
    dynamic_shapes = _complete_shapes(model, args, kwargs, dynamic_shapes)
    was_training = {module: module.training for module in model.modules()}
    try:
        with _memory_for_parameters(model, weights) as has_values:
            check = check and has_values
            buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
            evaluation = _trace(model, False, args, kwargs, dynamic_shapes, autocast)
            training = _trace(model, True, args, kwargs, dynamic_shapes, autocast)
            if causal:
                for program in (evaluation, training):
                    divide_attention(program, model, args, kwargs)
            if check:
                _compare_gradients(model, training, args, kwargs, autocast, buffers)
            if check and causal:
                with _autocast(model, autocast):
                    check_division(evaluation, args, kwargs)
    finally:
        for module, mode in was_training.items():
            module.training = mode
    return write_archive(training, evaluation, str(path), _facts(model, autocast), weights)


def _check_request(model, path, args, autocast):
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"the model must be a torch.nn.Module, but is a {type(model).__name__}")
    if not path.endswith(".pt2"):
        raise ValueError(f"the path must end in .pt2, but is '{path}'")
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"args must be a tuple of example arguments, but is a {type(args).__name__}: (x,) for one argument")
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"autocast must be torch.bfloat16, torch.float16 or None, but is {autocast!r}")


def _complete_shapes(model, args, kwargs, shapes):
    """Names all arguments, those of **kwargs in a dict of their own, as torch.export wants them."""
    signature = inspect.signature(model.forward)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ValueError(f"the example must fit the arguments of forward(), but does not: {error}") from error
    if not isinstance(shapes, dict):
        return shapes
    rest = next((name for name, kind in signature.parameters.items() if kind.kind is kind.VAR_KEYWORD and name in given), None)
    inner = list(given.get(rest, ()))
    unknown = [name for name in shapes if name not in given and name not in inner]
    if unknown:
        names = [name for name in given if name != rest] + inner
        raise ValueError(f"dynamic_shapes must name arguments of the example ({', '.join(names)}), but has {', '.join(map(repr, unknown))}")
    complete = {name: shapes.get(name) for name in given}
    if rest and complete[rest] is None:
        complete[rest] = {name: shapes.get(name) for name in inner}
    return complete


@contextlib.contextmanager
def _memory_for_parameters(model, weights):
    """Parameters on the meta device have memory inside, which nothing touches and so no page is made for. Says whether there were
    none.
    """
    places = [(module, name, parameter) for module in model.modules() for name, parameter in module._parameters.items()
              if parameter is not None and parameter.is_meta]
    missing = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if weights:
        missing += [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise ValueError(f"{'parameters and buffers' if weights else 'buffers'} must have values, but '{missing[0]}' is on the meta device"
                         + ("" if weights else ": accelerate.init_empty_weights() puts parameters alone there"))
    made = {parameter: torch.nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad) for _, _, parameter in places}
    try:
        for module, name, parameter in places:
            module._parameters[name] = made[parameter]
        yield not places
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter


def _facts(model, autocast=None):
    modules = list(model.named_modules(remove_duplicate=False))
    return {
        "format": 1,
        "modules": [[name, type(module).__name__] for name, module in modules],
        "evaluated": [name for name, module in modules if model.training and not module.training],
        "autocast": _name_of(autocast) if autocast else "",
        "tp_plan": _tensor_parallel_plan(model),
    }


def _name_of(dtype):
    return str(dtype).removeprefix("torch.")


def _tensor_parallel_plan(model):
    """Hugging Face's plan: patterns of the model's module names, and styles. A model has its children's plans with its own."""
    plan = {}
    for name, module in model.named_modules():
        own = getattr(module, "_tp_plan", None)
        for pattern, style in (own if isinstance(own, dict) else {}).items():
            plan.setdefault(f"{name}.{pattern}" if name else pattern, style)
    return [[pattern, style] for pattern, style in plan.items() if isinstance(style, str)]


def _device_type(model):
    return next((tensor.device.type for tensor in model.parameters()), "cpu")


def _autocast(model, dtype):
    return torch.autocast(_device_type(model), dtype=dtype) if dtype else contextlib.nullcontext()


def _trace(model, is_training, args, kwargs, dynamic_shapes, autocast):
    model.train(is_training)
    try:
        with _autocast(model, autocast):
            program = torch.export.export(model, tuple(args), kwargs, dynamic_shapes=dynamic_shapes, strict=False,
                                          prefer_deferred_runtime_asserts_over_guards=True)
    except Exception as error:
        text = str(error)
        advice = next((advice for phrase, advice in ADVICE if re.search(phrase, text)), "")
        raise ValueError(f"{type(model).__name__} cannot be exported{': ' if advice else ''}{advice}. torch.export says:\n{text}") from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            _allow_other_layouts(module.graph)
    return program


def _allow_other_layouts(graph):
    """The layout of attention's result depends on its kernel: on the device, on dropout, on whether ranks divide sequences. Export
    leaves out a contiguous() that did nothing, so a view of the result may have to copy elsewhere.
    """
    aten = torch.ops.aten
    results = {node for node in graph.nodes if node.target is aten.scaled_dot_product_attention.default}
    for node in graph.nodes:
        if node.target in (aten.permute.default, aten.reshape.default, aten.transpose.int, aten.view.default) and node.args[0] in results:
            results.add(node)
            if node.target is aten.view.default:
                node.target = aten.reshape.default


def _gradients(module, args, kwargs):
    """Gradients of the sum of all floating outputs, by parameter, after the same random numbers."""
    parameters = dict(module.named_parameters())
    torch.manual_seed(0)
    with torch.enable_grad():
        outputs = [out for out in tree_leaves(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
                   if isinstance(out, torch.Tensor) and out.requires_grad and out.is_floating_point()]
        wanted = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        if not outputs or not wanted:
            return {}
        total = sum(out.double().sum() for out in outputs)
        found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(wanted, found) if gradient is not None}


def _restore(values, buffers):
    with torch.no_grad():
        for name, value in values:
            if name in buffers:
                value.copy_(buffers[name])


def _compare_gradients(model, program, args, kwargs, autocast, buffers):
    random_state = torch.get_rng_state()
    model.train()
    with _autocast(model, autocast):
        own = _gradients(model, args, kwargs)
        _restore(model.named_buffers(), buffers)
        exported = _gradients(program.module(), args, kwargs)
    # The program keeps a buffer that the model has replaced by another tensor.
    for values in (model.named_buffers(), program.state_dict.items(), program.constants.items()):
        _restore(values, buffers)
    torch.set_rng_state(random_state)
    # Without its casts, and under autocast, the program may add in another order.
    is_exact = not autocast and all(g.dtype in (torch.float32, torch.float64) for g in own.values())
    tolerance = 1e-3 if is_exact else 0.05
    for name, gradient in own.items():
        if not gradient.isfinite().all():
            continue
        other = exported.get(name)
        error = gradient.norm() if other is None else (gradient.double() - other.double()).norm()
        if not error <= tolerance * gradient.double().norm() + 1e-4:
            raise ValueError(
                f"the exported program computes another gradient of '{name}' than the model: torch.export loses the backward of "
                "an autograd.Function. Make it an operator (torch.library.custom_op with register_autograd), and link it in C++")


def export_decoder_for_cpp(model, path, max_batch, max_length, *, weights=True, check=True):
    """Writes a causal model of Hugging Face to `path`, as a program that generates tokens with a cache of keys and values.

    max_batch, max_length: the most sequences of a call, and the most tokens of a sequence.
    weights: False leaves them out; C++ then reads them from safetensors. They have the names of the model's own, so that what
        was trained in C++ can be loaded, too.
    check: compares logits with those of the model; raises ValueError if they differ.

    Inputs of the program, whose batch, tokens and length are sizes that vary from call to call:
    * input_ids, position_ids: int64 [batch, tokens]; positions within each sequence, 0 for its first token;
    * cache.0, cache.1 ...: keys and values of each layer [batch, heads, length, head_dim], changed in place. They may be views
      of larger tensors: some rows, and of each row as many places as the tokens so far.
    The result "logits" [batch, vocabulary] is that of the last token of each row. A token is written to its position in the
    cache, and attends to positions up to its own. So rows of different lengths go together, and what lies behind the end of a row
    is never read: a row may be filled up by tokens on its left whose positions are behind its end.
    """
    was_training = {module: module.training for module in model.modules()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    try:
        # Otherwise C++ would record gradients in the cache.
        model.requires_grad_(False)
        with torch.no_grad():
            args, dynamic_shapes = _decoder_inputs(model, max_batch, max_length)
            # An attribute of the module, so that names of weights are the model's.
            model.forward = _decode_of(model)
            try:
                program = torch.export.export(model, copy.deepcopy(args), dynamic_shapes=dynamic_shapes, strict=False,
                                              prefer_deferred_runtime_asserts_over_guards=True)
            except Exception as error:
                raise ValueError(f"{type(model).__name__} must take input_ids, position_ids, a mask with four dimensions and a cache, "
                                 f"but cannot be exported with them: {error}") from error
            finally:
                del model.forward
            if check:
                _compare_logits(model, program.module(), args)
        return write_archive(program, program, str(path), _facts(model), weights)
    finally:
        for module, mode in was_training.items():
            module.training = mode
        for parameter in trained:
            parameter.requires_grad_()


def compile_for_cpp(model, path, args=(), kwargs=None, *, dynamic_shapes=None):
    """Compiles the forward of `model` in eval() with AOTInductor, for accelerate::load_package(). Needs a C++ compiler.

    Arguments as for export_for_cpp(). The file, which ends in .pt2, also has the graph that was compiled, which says what its
    inputs, results and weights are called. It runs on processors that have the instructions of this one.
    """
    kwargs = dict(kwargs or {})
    path = str(path)
    was_training = {module: module.training for module in model.modules()}
    parts = [f"{path}.{part}.pt2" for part in ("compiled", "graph")]
    try:
        with torch.no_grad():
            program = _trace(model, False, args, kwargs, dynamic_shapes, None)
            # Otherwise tensors of up to eight elements would be part of the code, and could not be replaced. The C++ program has
            # LibTorch, perhaps without the libraries of Python's that belong to other devices.
            configs = {"always_keep_tensor_constants": True, "aot_inductor.link_libtorch": _device_type(model) != "cpu"}
            torch._inductor.aoti_compile_and_package(program, package_path=parts[0], inductor_configs=configs)
        write_archive(program, program, parts[1], _facts(model), weights=False)
        join_archives(parts, path)
    finally:
        for module, mode in was_training.items():
            module.training = mode
        for part in parts:
            if os.path.exists(part):
                os.remove(part)


class _GivenCache:
    """Writes keys and values at their positions in the tensors that the program gets."""

    is_compileable = True

    def __init__(self, tensors, positions):
        self.tensors, self.positions = tensors, positions
        self.rows = torch.arange(positions.shape[0], device=positions.device)[:, None]

    def update(self, keys, values, layer, *args, **kwargs):
        own = self.tensors[2 * layer:2 * layer + 2]
        for cache, states in zip(own, (keys, values)):
            cache.transpose(1, 2).index_put_((self.rows, self.positions), states.transpose(1, 2))
        return own

    def get_seq_length(self, layer=0):
        return 0


def _masks(config, positions, length, dtype):
    """Which places of the cache each token attends to, by the type of the layer."""
    place = torch.arange(length, device=positions.device)
    token = positions[:, None, :, None]
    window = getattr(config, "sliding_window", None)
    masks = {"full_attention": place <= token}
    if window is not None:
        masks["sliding_attention"] = masks["full_attention"] & (place > token - window)
    if config._attn_implementation == "eager":
        masks = {name: torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype) for name, mask in masks.items()}
    types = getattr(config, "layer_types", None)
    if types is None:
        return masks["full_attention" if window is None else "sliding_attention"]
    return {name: masks[name] for name in set(types)}


def _decode_of(model):
    forward = model.forward
    name = _cache_argument(model)

    def decode(input_ids, position_ids, cache):
        out = forward(input_ids=input_ids, position_ids=position_ids, use_cache=True, logits_to_keep=1,
                      attention_mask=_masks(model.config, position_ids, cache[0].shape[2], model.dtype),
                      **{name: _GivenCache(cache, position_ids)})
        return {"logits": out.logits[:, -1]}

    return decode


def _cache_argument(model):
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _decoder_inputs(model, max_batch, max_length):
    """Example inputs, and their dynamic shapes."""
    if max_batch < 1 or max_length < 4:
        raise ValueError(f"max_batch must be at least 1 and max_length at least 4, but they are {max_batch} and {max_length}")
    if model.config._attn_implementation not in ("eager", "sdpa"):
        raise ValueError(f"the attention must be 'eager' or 'sdpa', but is '{model.config._attn_implementation}': "
                         "model.set_attn_implementation('sdpa')")
    device = next(model.parameters()).device
    batch = min(max_batch, 2)
    ids = torch.arange(3, device=device).expand(batch, 3).contiguous()
    layers = model(input_ids=ids, use_cache=True)[_cache_argument(model)].layers
    if not all(hasattr(layer, "keys") for layer in layers):
        raise ValueError("all layers must cache keys and values, but some have a state of another kind")
    caches = [tensor.new_zeros(batch, tensor.shape[1], 4, tensor.shape[3]) for layer in layers for tensor in (layer.keys, layer.values)]
    rows = {0: torch.export.Dim("batch", min=1, max=max_batch)} if max_batch > 1 else {}
    tokens = {**rows, 1: torch.export.Dim("tokens", min=1, max=max_length)}
    places = {**rows, 2: torch.export.Dim("length", min=1, max=max_length)}
    return (ids, ids.clone(), caches), {"input_ids": tokens, "position_ids": tokens, "cache": [places] * len(caches)}


def _compare_logits(model, program, args):
    """Three tokens and then one more, against those of one forward without a cache."""
    ids, positions, caches = copy.deepcopy(args)
    last = ids[:, :1]
    expected = model(input_ids=torch.cat([ids, last], 1), use_cache=False).logits.float()
    found = [program(ids, positions, caches)["logits"], program(last, positions[:, -1:] + 1, caches)["logits"]]
    error = (torch.stack(found, 1).float() - expected[:, -2:]).norm()
    tolerance = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
    if not error <= tolerance * expected[:, -2:].norm():
        raise ValueError(f"the program must compute the logits of the model, but differs by {error:.3g}: it has something that "
                         "export_decoder_for_cpp does not know, such as another kind of mask")
