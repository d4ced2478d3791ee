#!/usr/bin/env python3
"""What accelerate_cpp_export.py writes and refuses. Ends with 77 and the reason if this Python has no torch 2.11 to 2.15; cases with
models of Hugging Face are skipped without transformers.

    export_test.py [CASE...]
"""
import pathlib
import sys
import tempfile
import unittest
import zipfile

try:
    import torch
    from torch import nn
except ImportError:
    print("the Python of ACCELERATE_CROSS_PYTHON has no torch")
    sys.exit(77)
VERSION = [int(part) for part in torch.__version__.split("+")[0].split(".")[:2]]
if not [2, 11] <= VERSION <= [2, 15]:
    print(f"torch must be 2.11 to 2.15, but is {torch.__version__}")
    sys.exit(77)

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / directory) for directory in ("python", "tools")]
import make_exported_programs as programs  # noqa: E402
from accelerate_cpp_export import export_for_cpp  # noqa: E402

try:
    import transformers
except ImportError:
    transformers = None
X = torch.ones(3, 4)
ROWS = torch.export.Dim("rows", min=2, max=64)
LENGTH = torch.export.Dim("length", min=2, max=64)
IDS = torch.zeros(2, 8, dtype=torch.long)
PLACES = torch.arange(8).expand(2, 8).contiguous()
needs_transformers = unittest.skipUnless(transformers, "needs transformers")


def net_of(forward):
    """A module with a linear layer and this forward."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
    Net.forward = forward
    return Net()


torch.set_num_threads(1)


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "model.pt2"

    def export(self, model, *args, **options):
        return export_for_cpp(model, self.path, args, **options)

    def expect_refused(self, phrase, model, *args, **options):
        self.path.unlink(missing_ok=True)
        with self.assertRaises(ValueError) as caught:
            self.export(model, *args, **options)
        self.assertIn(phrase, str(caught.exception))
        self.assertFalse(self.path.exists())


class Files(Case):
    def test_torch_reads_the_first_graph_of_two(self):
        model = net_of(lambda self, x: self.fc(x) * 2 if self.training else self.fc(x))
        self.assertFalse(self.export(model, X)["one_graph"])
        program = torch.export.load(self.path)
        self.assertTrue(torch.equal(program.module()(X), model(X)))

    def test_torch_reads_models_with_dropout_whose_eval_differs(self):
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.export(layer, X[None])
        torch.export.load(self.path).module()(X[None])

    def test_compiled_models_have_the_names_of_their_own(self):
        facts = self.export(torch.compile(net_of(lambda self, x: self.fc(x))), X)
        self.assertEqual(facts["modules"], [["", "Net"], ["fc", "Linear"]])

    def test_modes_are_left_as_they_were(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
        model[1].eval()
        self.assertEqual(self.export(model, X)["evaluated"], ["1"])
        self.assertEqual([module.training for module in model], [True, False, True])

    def test_views_of_attention_may_copy(self):
        """Where another kernel, on another device say, has another layout."""
        self.export(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), torch.ones(2, 3, 4))
        program = torch.export.load(self.path)
        aten = torch.ops.aten
        (attention,) = [node for node in program.graph.nodes if node.target is aten.scaled_dot_product_attention.default]
        (permuted,) = attention.users
        self.assertEqual([node.target for node in permuted.users], [aten.reshape.default])


class Weights(Case):
    def model(self):
        model = nn.Sequential(nn.Embedding(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6, bias=False))
        model[2].weight = model[0].weight
        return model

    def names(self):
        with zipfile.ZipFile(self.path) as archive:
            return [name for name in archive.namelist() if "/weights/weight_" in name]

    def test_parameters_without_memory_keep_their_ties(self):
        model = self.model()
        model[0].weight = model[2].weight = nn.Parameter(model[0].weight.to("meta"))
        self.export(model, torch.arange(5), weights=False)
        self.assertTrue(model[0].weight.is_meta)
        self.assertIs(model[0].weight, model[2].weight)
        self.assertEqual(self.names(), [])
        self.expect_nothing_on_meta()

    def expect_nothing_on_meta(self):
        with zipfile.ZipFile(self.path) as archive:
            text = archive.read("model/models/model.json") + archive.read("model/data/weights/model_weights_config.json")
        self.assertNotIn(b'"meta"', text)

    def test_buffers_must_have_values(self):
        self.expect_refused("buffers must have values, but '1.running_mean' is on the meta device: accelerate.init_empty_weights()",
                            self.model().to("meta"), torch.arange(5), weights=False)

    def test_weights_that_are_written_must_have_values(self):
        model = nn.Linear(4, 4, device="meta")
        self.expect_refused("parameters and buffers must have values, but 'weight' is on the meta device", model, X)


class Requests(Case):
    """Errors say what was given, and what to do."""

    def test_wrong_arguments_are_named(self):
        net = net_of(lambda self, x: self.fc(x))
        for phrase, call in (
                ("args must be a tuple of example arguments, but is a Tensor", lambda: export_for_cpp(net, self.path, X)),
                ("the model must be a torch.nn.Module, but is a function", lambda: export_for_cpp(lambda x: x, self.path, (X,))),
                ("the path must end in .pt2, but is 'net'", lambda: export_for_cpp(net, "net", (X,))),
                ("autocast must be torch.bfloat16, torch.float16 or None, but is 'bf16'",
                 lambda: export_for_cpp(net, self.path, (X,), autocast="bf16"))):
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(phrase, str(caught.exception))

    def test_arguments_that_do_not_fit_are_refused(self):
        self.expect_refused("the example must fit the arguments of forward(), but does not: missing a required argument: 'x'", net_of(lambda self, x: self.fc(x)), kwargs=dict(y=X))

    def test_shapes_may_leave_out_arguments(self):
        net = net_of(lambda self, x, scale=None, times=2, *, extra=None: self.fc(x) * times + extra)
        self.export(net, X, kwargs=dict(times=3, extra=X), dynamic_shapes=dict(x={0: ROWS}, extra={0: ROWS}))
        program = torch.export.load(self.path)
        self.assertEqual(program.module()(X[:2], times=3, extra=X[:2]).shape, (2, 4))
        self.expect_refused("dynamic_shapes must name arguments of the example (x, extra), but has 'y'",
                            net, X, kwargs=dict(extra=X), dynamic_shapes=dict(y={0: ROWS}))

    def test_shapes_of_further_keywords_are_named_as_others(self):
        net = net_of(lambda self, x, **rest: self.fc(x) + rest["y"] * rest["times"])
        given = dict(kwargs=dict(y=X, times=2), dynamic_shapes=dict(x={0: ROWS}, y={0: ROWS}))
        if VERSION < [2, 15]:
            self.expect_refused("knows no dynamic_shapes of arguments that **kwargs collects", net, X, **given)
            return
        self.export(net, X, **given)
        self.assertEqual(torch.export.load(self.path).module()(X[:2], y=X[:2], times=2).shape, (2, 4))

    def test_branches_on_data_are_explained(self):
        self.expect_refused("Net cannot be exported: forward() decides by values of tensors, as at the line below. Decide by torch.where",
                            net_of(lambda self, x: self.fc(x) if x.sum() > 0 else x), X)

    def test_fixed_sizes_are_explained(self):
        net = net_of(lambda self, x: self.fc(x) + torch.arange(len(x))[:, None])
        self.expect_refused("Read sizes by x.shape[0], not by len(x)", net, X, dynamic_shapes=({0: ROWS},))
        self.expect_refused("sizes of 0 and 1 are taken to be fixed", net_of(lambda self, x: self.fc(x)), X[:1],
                            dynamic_shapes=({0: torch.export.Dim("rows", max=64)},))

    def test_results_of_unknown_kinds_are_explained(self):
        class Result:
            pass
        self.expect_refused("forward() must return tensors, or tuples", net_of(lambda self, x: Result()), X)

    def test_numpy_is_explained(self):
        self.expect_refused("must compute with torch, not with NumPy", net_of(lambda self, x: torch.from_numpy(x.numpy())), X)

    @needs_transformers
    def test_caches_are_explained(self):
        model = programs.causal("Llama", use_cache=True)
        self.expect_refused("it returns a cache, so set use_cache=False", model, kwargs=dict(input_ids=IDS))


class Own(nn.Module):
    """Attention written by hand; `kind` says of which kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.tokens, self.places = nn.Embedding(64, 16), nn.Embedding(64, 16)
        self.inputs, self.head = nn.Linear(16, 48), nn.Linear(16, 64)
        self.layer = nn.MultiheadAttention(16, 4, batch_first=True)
        self.register_buffer("earlier", torch.ones(64, 64, dtype=torch.bool).tril(), persistent=False)

    def forward(self, input_ids, position_ids, mask=None):
        length = input_ids.shape[1]
        if self.kind == "counts":
            position_ids = torch.arange(length)
        x = self.tokens(input_ids) + self.places(position_ids)
        return self.head(self.attend(x, length, mask))

    def attend(self, x, length, mask):
        if self.kind.startswith("layer"):
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            return self.layer(x, x, x, attn_mask=mask, need_weights=self.kind == "layer with weights")[0]
        q, k, v = self.inputs(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4).unbind()
        place = torch.arange(length)
        masks = {
            "buffer": lambda: self.earlier[:length, :length],
            "minus infinity": lambda: x.new_full((length, length), float("-inf")).triu(1),
            "bias": lambda: (place - place[:, None]).float(),
            "window": lambda: (place <= place[:, None]) & (place > place[:, None] - 20),
            "given": lambda: mask,
        }
        if self.kind in masks:
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=masks[self.kind]())
        elif self.kind == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).float()
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.kind != "all positions")
        if self.kind == "by hand":
            y = y + (q @ k.transpose(-1, -2)).masked_fill(~self.earlier[:length, :length], float("-inf")).softmax(-1) @ v
        if self.kind == "sums":
            y = y + y.cumsum(2)
        return y.transpose(1, 2).flatten(-2)


class Sequences(Case):
    """causal=True: ranks divide sequences, or the model is refused."""

    def arguments(self, **more):
        kwargs = dict(input_ids=IDS, position_ids=PLACES, **more)
        shapes = {name: {0: LENGTH if name == "mask" else ROWS, 1: LENGTH} for name in kwargs}
        return dict(kwargs=kwargs, dynamic_shapes=shapes, causal=True)

    def expect_divided(self, model, is_causal=True):
        self.export(model, **self.arguments())
        graph = torch.export.load(self.path).graph
        calls = [node for node in graph.nodes if node.target is torch.ops.aten.scaled_dot_product_attention.default]
        self.assertTrue(calls)
        names = [argument.name for argument in calls[0].target._schema.arguments]
        for call in calls:
            given = {**dict(zip(names, call.args)), **call.kwargs}
            self.assertIsNone(given.get("attn_mask"))
            self.assertEqual(given.get("is_causal", False), is_causal)
        return calls

    def expect_undivided(self, phrase, model, **more):
        self.expect_refused(phrase, model, **self.arguments(**more))

    def test_masks_of_hand_written_attention_become_causal(self):
        for kind in ("causal", "buffer", "minus infinity", "layer"):
            with self.subTest(kind):
                self.expect_divided(Own(kind))
        self.expect_divided(Own("all positions"), is_causal=False)

    def test_other_masks_are_refused(self):
        self.expect_undivided("that of the model is another for 8 positions: a window", Own("bias"))
        self.expect_undivided("that of the model is another for 64 positions: a window", Own("window"))
        self.expect_undivided("that of the model depends on 'mask'", Own("given"), mask=torch.ones(8, 8, dtype=torch.bool).tril())

    def test_what_ranks_would_compute_from_their_own_positions_is_refused(self):
        for kind in ("counts", "by hand", "sums"):
            with self.subTest(kind):
                self.expect_undivided("ranks that have parts of a sequence must compute the model's results, but result 0", Own(kind))
        self.expect_undivided("must compute attention by scaled_dot_product_attention, but has none", Own("layer with weights"))
        self.expect_undivided("must not be inside of torch.cond, a loop, torch.no_grad or torch.autocast", Own("autocast"))

    def test_the_length_must_vary(self):
        arguments = {**self.arguments(), "dynamic_shapes": None}
        self.expect_refused("the number of positions must be that of an input and vary (dynamic_shapes), but is 8",
                            Own("causal"), **arguments)

    @needs_transformers
    def test_models_of_hugging_face_are_divided_whatever_their_attention_is_called(self):
        gpt2 = transformers.GPT2LMHeadModel(programs.gpt2_config())
        for model in (gpt2, programs.causal("Qwen2")):
            with self.subTest(type(model).__name__):
                calls = self.expect_divided(programs.AtPositions(model))
                self.assertEqual(calls[0].args[1].meta["val"].shape[1], 4 if model is gpt2 else 2)

    @needs_transformers
    def test_windows_must_be_as_long_as_the_longest_sequence(self):
        def windowed(**changes):
            return programs.AtPositions(programs.causal("Mistral", **changes))
        self.expect_divided(windowed(sliding_window=64))
        self.expect_undivided("net.model.layers.0.self_attn is another for 64 positions: a window", windowed(sliding_window=32))
        arguments = self.arguments()
        sizes = {0: ROWS, 1: torch.export.Dim("long", min=2)}
        arguments["dynamic_shapes"] = dict(input_ids=sizes, position_ids=sizes)
        self.expect_refused("the length must be at most the window of 'net', 32768", windowed(sliding_window=32768), **arguments)

    @needs_transformers
    def test_inputs_of_hugging_face_that_a_rank_does_not_have_are_refused(self):
        llama = programs.causal("Llama")
        self.expect_undivided("depends on 'attention_mask'. Leave masks out of the inputs", llama, attention_mask=torch.ones_like(IDS))
        self.expect_undivided("result 0 would not be the mean of theirs", llama, labels=IDS)
        self.expect_undivided("but has none: use model.set_attn_implementation('sdpa')",
                              programs.AtPositions(programs.causal("Llama", attn_implementation="eager")))


if __name__ == "__main__":
    unittest.main()
