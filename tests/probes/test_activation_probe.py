"""What a probe sees of a model, and that it leaves nothing behind."""

import copy
import io
import threading
from dataclasses import dataclass, field

import pytest
import torch
from probing import mlp, num_hooks, probe
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradguard.model.model_boundary import output_tensor
from gradguard.probes.activation_places import find_places, kind_of, roots_of
from gradguard.probes.activation_probe import MAX_PASSES, ActivationProbe
from gradguard.probes.unit_sample import sample_units


class Functional(nn.Module):
    def __init__(self, function=torch.relu):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.function = function

    def forward(self, x, *, scale=None):
        hidden = self.function(self.second(self.function(self.first(x))))
        return self.head(hidden if scale is None else hidden * scale)


def column(seen, name, field):
    return getattr(seen, field)[seen.names.index(name)]


def test_units_that_are_zero_for_every_sample_are_dead():
    model = mlp(nn.ReLU(), nn.Tanh())
    with torch.no_grad():
        model[0].bias[:2] = -100.0
        model[2].weight.mul_(1e3)
    seen = probe(model, torch.randn(300, 8))
    assert seen.names == ("1", "3")
    assert seen.kinds == ("relu", "tanh")
    assert seen.num_samples.tolist() == [256, 256]
    assert seen.num_units.tolist() == [8, 8]
    assert column(seen, "1", "dead") == 0.25
    assert column(seen, "3", "saturated") > 0.9
    assert torch.tensor(column(seen, "1", "saturated")).isnan()
    assert seen.unseen == ()


def test_a_unit_that_is_alive_for_one_sample_is_alive():
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(-0.5)
    inputs = torch.zeros(64, 1)
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    for step in range(4):
        inputs[7] = float(step == 3)
        assert not looking.is_complete()
        model(inputs)
    assert looking.is_complete()
    seen = looking.launch()()
    assert seen.dead.tolist() == [0.0]
    assert seen.num_passes == 4


def test_an_activation_that_is_changed_in_place_is_seen_as_it_was():
    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(8, 8), nn.ReLU(inplace=True)

        def forward(self, x):
            return self.act(self.a(x)).sub_(7.0)

    assert column(probe(Changed(), torch.randn(256, 8)), "act", "mean") > 0


@pytest.mark.parametrize("function", [torch.relu, torch.relu_, nn.functional.relu])
def test_a_relu_inside_forward_is_known_by_its_values(function):
    seen = probe(Functional(function), torch.randn(256, 4))
    assert dict(zip(seen.names, seen.kinds, strict=True)) == {"input of second": "relu", "input of head": "relu"}


def test_what_is_no_relu_is_called_an_input_and_not_looked_at_again():
    model = Functional(torch.tanh)
    looking = ActivationProbe(model, pytest.fail)
    kinds = []
    for _ in range(2):
        looking.begin()
        model(torch.randn(256, 4))
        kinds.append(looking.launch()().kinds)
    assert kinds == [("input", "input"), ()]


def test_data_with_zeros_is_no_dead_layer():
    pixels = torch.rand(256, 4)
    pixels[:, 0] = 0.0
    assert "first" not in probe(Functional(), pixels.mul(0.5)).names


def test_a_tensor_is_counted_once():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act, self.b = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.act(self.a(x)).view(-1, 4))

    assert probe(Both(), torch.randn(256, 4)).names == ("act",)


def test_each_call_of_a_shared_module_is_a_place_of_its_own():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 9), nn.ReLU()

        def forward(self, x):
            for _ in range(5):
                x = self.act(self.a(x))
            return self.act(self.b(x))

    seen = probe(Shared(), torch.randn(256, 4))
    assert seen.names == ("act", "act (call 2)", "act (call 3)", "act (call 4)")
    assert "of the calls of 'act' in one pass only the first 4 are seen" in seen.unseen


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_recomputed_forward_is_not_counted_again(use_reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = mlp(nn.ReLU()), nn.Linear(3, 1)

        def forward(self, x):
            return self.head(checkpoint(self.block, x, use_reentrant=use_reentrant))

    model = Checkpointed()
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    model(torch.randn(100, 8, requires_grad=True)).sum().backward()
    seen = looking.launch()()
    assert column(seen, "block.1", "num_samples") == 100
    assert seen.num_passes == 1


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference"])
def test_a_pass_for_evaluation_is_not_counted(how):
    model = mlp(nn.ReLU())
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    context = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(how, torch.enable_grad)
    model.train(how != "eval")
    with context():
        model(torch.randn(256, 8))
    model.train()
    seen = looking.launch()()
    assert seen.names == ()
    assert seen.output is None
    assert seen.unseen == ("no forward pass of the model was seen while it was in training mode",)


def test_channels_are_the_units_behind_a_convolution():
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten())
    with torch.no_grad():
        model[1].bias[0] = -1e3
    seen = probe(model, torch.randn(64, 1, 9, 7), passes=4)
    assert seen.num_units.tolist() == [5]
    assert seen.dead.tolist() == pytest.approx([0.2])
    assert seen.num_samples[0] >= 256


@pytest.mark.parametrize(
    ("shape", "num_spatial", "rows"),
    [((7, 5), 0, 7), ((2, 300, 5), 0, 256), ((300, 5), 0, 256), ((3, 5, 4, 4), 2, 48), ((2, 5, 4, 4, 4), 3, 64)],
)
def test_samples_are_entries_of_the_tensor(shape, num_spatial, rows):
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    for given in (values, values.transpose(0, -1).contiguous().transpose(0, -1)):
        sample = sample_units(given, num_spatial)
        assert sample.values.shape == (rows, 5)
        assert sample.num_units == 5
        units = values.movedim(1, -1) if num_spatial else values
        wanted = {tuple(row) for row in units.reshape(-1, 5).tolist()}
        assert {tuple(row) for row in sample.values.tolist()} <= wanted
        assert len({tuple(row) for row in sample.values.tolist()}) > 0.7 * rows


def test_of_many_units_some_are_taken():
    sample = sample_units(torch.randn(300, 1000), 0)
    assert sample.num_units == 1000
    assert sample.values.shape == (256, 125)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"loss": torch.zeros(()), "logits": torch.ones(4, 2), "hidden": torch.zeros(4, 9)}, (4, 2)),
        ((torch.zeros(4, dtype=torch.long), torch.ones(4, 3)), (4, 3)),
        (torch.zeros(()), None),
        ("text", None),
        (torch.zeros(4, 0), None),
        (torch.zeros(4, 3, dtype=torch.complex64), None),
        (torch.zeros(4, 3).to_sparse(), None),
    ],
)
def test_the_prediction_is_found_in_what_models_return(output, expected):
    found = output_tensor(output)
    assert (None if found is None else tuple(found.shape)) == expected


@dataclass
class Answer:
    extra: Tensor
    logits: Tensor


def test_the_prediction_is_found_in_a_dataclass():
    assert output_tensor(Answer(torch.zeros(4, 9), torch.zeros(4, 2))).shape == (4, 2)


@pytest.mark.filterwarnings("ignore:.*prototype:UserWarning")
def test_nested_tensors_and_fields_that_are_not_filled_in_are_passed_over():
    @dataclass
    class Answer:
        ragged: Tensor
        found: Tensor
        late: Tensor = field(init=False)

    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert output_tensor(Answer(ragged, torch.zeros(4, 2))).shape == (4, 2)


def test_inputs_are_named_by_position_and_keyword():
    seen = probe(Functional(), torch.randn(8, 4), scale=torch.ones(8, 6))
    assert [(entry.name, entry.shape) for entry in seen.inputs] == [("0", (8, 4)), ("scale", (8, 6))]


def test_the_output_of_a_collapsed_model_has_no_spread():
    model = mlp(nn.ReLU())
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.fill_(0.25)
    seen = probe(model, torch.randn(256, 8))
    assert seen.output.spread == 0.0
    assert seen.output.level == 0.25


def test_what_is_not_called_itself_is_looked_at_below():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(nn.ReLU())

        def forward(self, x):
            raise AssertionError("never called")

    model = Outer()
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    model.net(torch.randn(256, 8))
    assert not looking.is_complete()
    looking.step_taken()
    model.net(torch.randn(256, 8))
    assert looking.is_complete()
    assert looking.launch()().names == ("net.1",)
    assert num_hooks(model) == 0


def test_parts_that_are_called_apart_have_no_common_output():
    model = nn.ModuleDict({"g": mlp(nn.ReLU()), "d": mlp(nn.GELU())})
    seen = probe(model, torch.randn(256, 8), call=lambda x: model["d"](x * model["g"](x).sum()))
    assert seen.names == ("g.1", "d.1")
    assert seen.output is None
    assert "the model has several parts that are called apart: its input and output are not looked at" in seen.unseen


def test_a_probe_without_enough_samples_ends_after_some_passes():
    model = mlp(nn.ReLU())
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    for _ in range(MAX_PASSES):
        assert not looking.is_complete()
        model(torch.randn(2, 8))
    assert looking.is_complete()
    assert looking.launch()().num_samples.tolist() == [2 * MAX_PASSES]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("attached", ["inner", "outer", "part"])
def test_compiled_code_is_left_alone(backend, attached):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = Functional()
    called = root = torch.compile(model, backend=backend)
    if attached == "inner":
        root = model
    if attached == "part":
        called = root = model = Functional()
        model.second = torch.compile(model.second, backend=backend)
    looking = ActivationProbe(root, pytest.fail)
    unseen = []
    for _ in range(3):
        looking.begin()
        called(torch.randn(256, 4)).sum().backward()
        unseen.append(looking.launch()().unseen)
        called(torch.randn(256, 4)).sum().backward()
    stats = torch._dynamo.utils.counters
    assert stats["stats"]["unique_graphs"] == 1
    assert not stats["graph_break"]
    told = {
        "inner": "no forward pass of the model was seen while it was in training mode",
        "outer": "the model is compiled: what happens inside it cannot be seen",
        "part": "'second' is compiled: what happens inside it cannot be seen",
    }
    assert unseen == [(told[attached],)] * 3


def test_a_model_compiled_in_place_gets_no_hook():
    model = mlp(nn.ReLU())
    model.compile(backend="eager")
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    assert num_hooks(model) == 0
    assert looking.launch()().unseen[0] == "the model is compiled: what happens inside it cannot be seen"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_is_left_alone():
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), nn.Linear(8, 1))
    seen = probe(model, torch.randn(256, 8))
    assert "'0' is a TorchScript module: what happens inside it cannot be seen" in seen.unseen


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripting_while_hooks_are_on_says_what_to_do():
    model = mlp(nn.ReLU())
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    with pytest.raises(AttributeError, match="script the model before"):
        torch.jit.script(model)
    looking.close()
    torch.jit.script(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_holds_nothing_of_the_probe():
    model = mlp(nn.ReLU())
    looking = ActivationProbe(model, pytest.fail)
    bare = torch.jit.trace(model, torch.randn(4, 8))
    looking.begin()
    hooked = torch.jit.trace(model, torch.randn(4, 8))
    looking.close()
    assert str(bare.inlined_graph).count("aten::") == str(hooked.inlined_graph).count("aten::")


@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_a_copy_does_not_report_into_the_original(how):
    model = mlp(nn.ReLU())
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    twin(torch.randn(256, 8))
    assert looking.samples.num_passes == 0
    model(torch.randn(256, 8))
    assert looking.is_complete()
    looking.close()
    assert num_hooks(model) == 0


def test_a_forward_that_raises_leaves_no_hook_on_the_places():
    model = mlp(nn.ReLU())
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    with pytest.raises(RuntimeError):
        model(torch.randn(256, 9))
    assert num_hooks(model) == 2
    looking.close()
    assert num_hooks(model) == 0


def test_a_probe_that_fails_is_off_and_the_forward_goes_on():
    class Odd(Tensor):
        def detach(self):
            raise ValueError("no")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(4, 4), nn.ReLU()
            self.register_forward_hook(lambda m, args, output: None)

        def forward(self, x):
            return self.act(self.a(x).as_subclass(Odd)).as_subclass(Tensor)

    told = []
    model = Model()
    looking = ActivationProbe(model, lambda what, error: told.append((what, repr(error))))
    looking.begin()
    assert model(torch.randn(8, 4)).shape == (8, 4)
    assert told == [("looking at activations (now off)", "ValueError('no')")]
    assert num_hooks(model) == 1
    looking.begin()
    assert num_hooks(model) == 1


class Encoder(nn.Module):
    """Its layers are called apart, itself never."""

    def __init__(self, layer):
        super().__init__()
        self.layers = nn.ModuleList([layer])


@pytest.mark.parametrize("wrap", [lambda layer: layer, lambda layer: nn.ModuleList([layer]), Encoder])
def test_an_encoder_layer_that_is_called_by_itself_gets_no_hook(wrap):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    looking = ActivationProbe(wrap(layer), pytest.fail)
    looking.begin()
    for _ in range(4):
        layer(torch.randn(4, 3, 8)).sum().backward()
        looking.step_taken()
        assert num_hooks(layer) == 0
    name = next((name for name, _ in looking._roots if name), None)
    called = "the model" if name is None else repr(name)
    assert f"{called} is called by itself and has a fast path, which hooks would close" in looking.launch()().unseen


def test_the_fast_path_of_an_encoder_layer_is_not_closed():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.Sequential(layer, nn.Linear(8, 1))
    looking = ActivationProbe(model, pytest.fail)
    inputs = torch.randn(4, 3, 8)
    model.eval()
    with torch.no_grad():
        before = model(inputs)
        looking.begin()
        assert torch.equal(model(inputs), before)
    layer.requires_grad_(False)
    model[1].train()
    model.training = True  # a frozen part in evaluation mode
    model(inputs)
    assert "0.linear2" not in looking.launch()().names


def test_threads_of_one_model_do_not_mix_up_their_passes():
    model = mlp(nn.ReLU())
    looking = ActivationProbe(model, pytest.fail)
    looking.begin()
    threads = [threading.Thread(target=model, args=(torch.randn(32, 8),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    looking.launch()()
    assert num_hooks(model) == 0


def test_places_of_activations_of_others_are_known_by_name():
    class NewGELUActivation(nn.Module):
        def forward(self, x):
            return x

    assert kind_of(NewGELUActivation()) == "gelu"
    assert kind_of(nn.Linear(1, 1)) is None
    assert kind_of(nn.Identity()) is None


def test_of_very_many_places_some_are_looked_at():
    model = nn.Sequential(*[nn.ReLU() for _ in range(300)])
    found = find_places(model)
    assert len(found.places) == 128
    assert found.places[-1].name == "297"
    assert found.unseen == ["128 of the 300 places are looked at, evenly over the depth"]


def test_wrappers_add_nothing_to_a_name():
    model = nn.DataParallel(mlp(nn.ReLU()))
    assert probe(model, torch.randn(256, 8)).names == ("1",)
    assert [name for name, _ in roots_of(nn.ModuleList([nn.ModuleDict({"a": nn.ReLU()})]))] == ["0.a"]


class Looped(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        return self.cell(x)[0]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("make", [nn.RNN, nn.LSTM, nn.GRU])
def test_the_gradient_through_time_is_that_of_the_module_itself(make, batch_first):
    torch.manual_seed(0)
    cell = make(3, 5, batch_first=batch_first)
    inputs = torch.randn(4, 12, 3) if batch_first else torch.randn(12, 4, 3)
    seen = probe(Looped(cell), inputs)
    leaf = inputs.clone().requires_grad_()
    output = cell(leaf)[0]
    direction = torch.randn(5, generator=torch.Generator().manual_seed(0x74696D65))
    last = output[:, -1] if batch_first else output[-1]
    (gradient,) = torch.autograd.grad((last * direction).sum(), leaf)
    norms = gradient.norm(dim=(0, 2) if batch_first else (1, 2))
    assert seen.through_time["cell"] == pytest.approx((norms[0] / norms[-1]).item(), rel=1e-4)
    assert all(param.grad is None for param in cell.parameters())


@pytest.mark.parametrize("kind", ["packed", "short", "cell"])
def test_what_has_no_gradient_through_time_is_said(kind):
    cell = nn.LSTMCell(3, 5) if kind == "cell" else nn.LSTM(3, 5)
    inputs = torch.randn(4, 3) if kind == "cell" else torch.randn(3, 4, 3)
    if kind == "packed":
        inputs = nn.utils.rnn.pack_padded_sequence(torch.randn(9, 2, 3), [9, 4])
    model = Looped(cell)
    seen = probe(model, inputs)
    assert seen.through_time == {}
    assert any("through time is not measured" in text for text in seen.unseen)


def test_an_output_that_cannot_be_read_is_said():
    class Integers(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x):
            self.act((self.a(x) > 0).int())
            return self.a(x).sum()

    seen = probe(Integers(), torch.randn(8, 4))
    assert any("'act' gave a tensor of shape (8, 4), int32" in text for text in seen.unseen)
    assert seen.output is None
