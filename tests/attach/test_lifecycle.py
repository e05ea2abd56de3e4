"""Attached once, undone whole: every hook that attaching adds is gone after close, or after an attach that failed."""

import copy
import os

import pytest
import torch
from torch import nn

import gradguard


def hooks(model, optimizer):
    """Return how many hooks there are of every kind that torch knows, by owner."""
    counts = {}
    for place, owner in [("optimizer", optimizer), *model.named_modules(), *model.named_parameters()]:
        for name, value in vars(owner).items():
            if "hook" in name and hasattr(value, "__len__"):
                counts[f"{place}.{name}"] = len(value)
        if isinstance(owner, nn.Parameter):
            counts[f"{place}.accumulate"] = len(owner._post_accumulate_grad_hooks or ())
            counts[f"{place}.backward"] = len(owner._backward_hooks or ())
    return counts


@pytest.fixture
def training(make_net):
    model = make_net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def test_close_takes_every_hook_off_and_training_goes_on_unguarded(training, batches, train):
    before = hooks(*training)
    guard = gradguard.attach(*training)
    assert hooks(*training) != before
    train(*training, batches, is_guarded=False)
    guard.close()
    assert hooks(*training) == before
    train(*training, [batches[0] * float("nan")], is_guarded=False)
    assert guard.step == len(batches)
    assert not training[0].body[0].weight.isfinite().any()


def test_hooks_of_others_stay_in_place(training, batches, train):
    model, optimizer = training
    seen = []
    optimizer.register_step_pre_hook(lambda *args: seen.append("before"))
    optimizer.register_step_post_hook(lambda *args: seen.append("after"))
    model.body[0].weight.register_post_accumulate_grad_hook(lambda param: seen.append("grad"))
    guard = gradguard.attach(model, optimizer)
    train(model, optimizer, batches[:1], is_guarded=False)
    guard.close()
    train(model, optimizer, batches[:1], is_guarded=False)
    assert seen == ["grad", "before", "after"] * 2


def test_closing_twice_and_observing_after_close_are_harmless(training, batches, train, tmp_path):
    guard = train(*training, batches, run_dir=tmp_path / "run")
    guard.close()
    guard.close()
    guard.observe(float("nan"))
    assert [event.event for event in gradguard.read_run(guard.run_dir).events] == ["attached", "closed"]


def test_a_with_block_closes_and_says_how_it_ended(training, batches, train, tmp_path):
    before = hooks(*training)
    with gradguard.attach(*training, run_dir=tmp_path / "good") as guard:
        train(*training, batches, is_guarded=False)
    assert guard.run_dir == str(tmp_path / "good")
    assert hooks(*training) == before
    assert gradguard.read_run(tmp_path / "good").status == "closed"

    with pytest.raises(KeyError), gradguard.attach(*training, run_dir=tmp_path / "bad"):
        raise KeyError("of the user's own")
    assert hooks(*training) == before
    assert gradguard.read_run(tmp_path / "bad").status == "failed"


def test_a_stopped_run_is_closed_and_complete_on_disk_when_the_error_reaches_the_user(
    training, batches, train, tmp_path
):
    before = hooks(*training)
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "stop"}])
    guard = gradguard.attach(*training, policy, run_dir=tmp_path / "run")
    train(*training, batches[:2], is_guarded=False)
    with pytest.raises(gradguard.TrainingStopped, match="step 2") as caught:
        train(*training, [batches[0] * float("nan")], is_guarded=False)
    assert caught.value.finding.diagnosis == "nonfinite"
    assert hooks(*training) == before
    run = gradguard.read_run(guard.run_dir)
    assert run.status == "stopped"
    assert [record.remedy for record in run.interventions] == ["stop"]
    assert run.statistics.num_steps == 3
    assert all(param.isfinite().all() for param in training[0].parameters())


def test_attaching_twice_is_refused_and_the_first_guard_goes_on(training, batches, train, tmp_path):
    guard = gradguard.attach(*training)
    attached = hooks(*training)
    with pytest.raises(gradguard.AttachError, match=r"guarded already.*close"):
        gradguard.attach(*training, run_dir=tmp_path / "run")
    assert hooks(*training) == attached
    assert not (tmp_path / "run").exists()
    train(*training, [batches[0] * float("nan")], is_guarded=False)
    assert guard.last.skipped


def test_one_may_attach_again_after_closing(training, batches, train):
    gradguard.attach(*training).close()
    guard = train(*training, [batches[0] * float("nan")])
    assert guard.last.skipped


def test_a_guard_that_nobody_keeps_still_guards(training, batches, train):
    gradguard.attach(*training)
    train(*training, [batches[0] * float("nan")], is_guarded=False)
    assert all(param.isfinite().all() for param in training[0].parameters())


def unwritable(tmp_path):
    """Return a run_dir that cannot be made by anyone, root included: there is a file in its way."""
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file" / "run"


def too_long(tmp_path):
    return tmp_path / "parent" / ("x" * 300)


@pytest.mark.parametrize("where", [unwritable, too_long])
def test_a_run_dir_that_cannot_be_made_is_refused_and_nothing_stays_behind(training, tmp_path, where):
    path = where(tmp_path)
    before, files = hooks(*training), sorted(os.walk(tmp_path))
    with pytest.raises(gradguard.RunDirectoryError, match="run_dir"):
        gradguard.attach(*training, run_dir=path)
    assert hooks(*training) == before
    assert sorted(os.walk(tmp_path)) == files
    gradguard.attach(*training).close()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("nonexistent-preset", "nonexistent-preset"),
        (gradguard.Policy(rules=[{"when": "nonfinite", "do": "skip_step", "parameters": ["bdy.*"]}]), "bdy"),
        (gradguard.Policy(monitor={"parameters": ["nothing.like.it"]}), "nothing.like.it"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_before_anything_is_made(training, tmp_path, policy, message):
    before = hooks(*training)
    with pytest.raises(gradguard.PolicyError, match=message):
        gradguard.attach(*training, policy, run_dir=tmp_path / "run")
    assert hooks(*training) == before
    assert list(tmp_path.iterdir()) == []


class StrangeOptimizer(torch.optim.SGD):
    """Refuses the second of the two hooks that a guard needs."""

    def register_step_post_hook(self, hook):
        raise RuntimeError("no post-hooks here")


def test_an_attach_that_fails_half_way_is_undone(make_net):
    model = make_net()
    optimizer = StrangeOptimizer(model.parameters(), lr=0.1)
    before = hooks(model, optimizer)
    with pytest.raises(RuntimeError, match="no post-hooks here"):
        gradguard.attach(model, optimizer)
    assert hooks(model, optimizer) == before


@pytest.mark.parametrize("run_dir", ["", 5])
def test_a_run_dir_that_is_no_path_is_refused(run_dir):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(gradguard.RunDirectoryError, match="must be the path of a directory"):
        gradguard.attach(model, optimizer, run_dir=run_dir)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_guard_itself_is_not_copied_in_silence():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer) as guard, pytest.raises(gradguard.UsageError, match="attach a new guard"):
        copy.deepcopy(guard)


@pytest.mark.parametrize("bad", [None, {}, {"version": 99}])
def test_a_state_that_is_none_is_refused(bad):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer) as guard, pytest.raises(gradguard.UsageError, match="state_dict"):
        guard.load_state_dict(bad)


def test_a_complex_loss_is_refused():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer) as guard, pytest.raises(gradguard.UsageError, match="complex"):
        guard.observe(torch.ones((), dtype=torch.complex64))
