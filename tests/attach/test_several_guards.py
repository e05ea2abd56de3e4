"""Several optimizers, a guard each: a GAN, or one model in two halves."""

import math

import pytest
import torch
from torch import nn

import gradguard


class Gan:
    """A generator and a discriminator that learn in turn."""

    def __init__(self):
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
        self.discriminator = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 1))
        self.of_generator = torch.optim.Adam(self.generator.parameters(), lr=1e-3)
        self.of_discriminator = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3)

    def attach(self, **options):
        return [
            gradguard.attach(self.generator, self.of_generator, name="g", **options),
            gradguard.attach(self.discriminator, self.of_discriminator, name="d", **options),
        ]

    def step(self, seed, guards=(None, None), bad=""):
        generator = torch.Generator().manual_seed(seed)
        noise, real = torch.randn(8, 2, generator=generator), torch.randn(8, 3, generator=generator)
        self.of_discriminator.zero_grad()
        fake = self.generator(noise).detach()
        loss = self.discriminator(fake).mean() - self.discriminator(real).mean()
        self._update(loss, self.of_discriminator, guards[1], bad == "d")
        self.of_generator.zero_grad()
        loss = -self.discriminator(self.generator(noise)).mean()
        self._update(loss, self.of_generator, guards[0], bad == "g")

    def _update(self, loss, optimizer, guard, is_bad):
        loss = loss * math.nan if is_bad else loss
        loss.backward()
        if guard is not None:
            guard.observe(loss)
        optimizer.step()

    def bits(self, bits):
        return bits(nn.ModuleList([self.generator, self.discriminator]), self.of_generator, self.of_discriminator)


def test_a_guarded_gan_is_bit_identical_to_an_unguarded_one(bits):
    results = []
    for is_guarded in (False, True):
        gan = Gan()
        guards = gan.attach() if is_guarded else (None, None)
        for seed in range(10):
            gan.step(seed, guards)
        results.append(gan.bits(bits))
    assert results[0] == results[1]
    assert [guard.step for guard in guards] == [10, 10]


@pytest.mark.parametrize(("bad", "skips"), [("d", [False, True]), ("g", [True, False])])
def test_each_guard_judges_its_own_optimizer_only(bad, skips, tmp_path):
    """The other network's gradients are NaN too, for the loss went through it."""
    gan = Gan()
    guards = gan.attach(run_dir=tmp_path / "run")
    for seed in range(4):
        gan.step(seed, guards, bad if seed == 2 else "")
        assert [guard.last.skipped for guard in guards] == (skips if seed == 2 else [False, False])
    for guard in guards:
        guard.close()
    for name, is_skipped in zip("gd", skips, strict=True):
        run = gradguard.read_run(tmp_path / "run", name=name)
        assert [record.step for record in run.interventions] == ([2] if is_skipped else [])
        assert len(run.parameters) == {"g": 6, "d": 4}[name]
        assert run.info["name"] == name


def test_a_run_dir_is_shared_by_name_and_a_name_is_taken_once(tmp_path):
    gan = Gan()
    guards = gan.attach(run_dir=tmp_path / "run")
    assert [guard.run_dir for guard in guards] == [str(tmp_path / "run" / name) for name in "gd"]
    other = nn.Linear(1, 1)
    again = gradguard.attach(other, torch.optim.SGD(other.parameters()), run_dir=tmp_path / "run", name="d")
    assert again.run_dir == str(tmp_path / "run-2" / "d")
    for guard in (*guards, again):
        guard.close()


def test_closing_one_guard_leaves_the_other_on(tmp_path):
    gan = Gan()
    guards = gan.attach()
    guards[0].close()
    gan.step(0, (None, guards[1]), bad="d")
    assert guards[1].last.skipped
    assert guards[0].step == 0


class TwoHalves(nn.Module):
    """Both halves run in every forward pass and are stepped by an optimizer each."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))

    def forward(self, inputs):
        return self.head(self.stem(inputs))


def train_halves(seeds, bad_seeds, *, is_guarded):
    torch.manual_seed(0)
    model = TwoHalves()
    optimizers = [torch.optim.AdamW(half.parameters(), lr=0.01) for half in (model.stem, model.head)]
    guards = [gradguard.attach(model, optimizer) for optimizer in optimizers] if is_guarded else []
    for seed in seeds:
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        if seed in bad_seeds:
            inputs[0] = math.nan
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(inputs) - 1.0).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return model, optimizers, guards


def test_two_optimizers_of_one_model_skip_the_same_batch_and_it_leaves_no_trace(bits):
    model, optimizers, _ = train_halves([0, 1, 2, 3], (), is_guarded=False)
    expected = bits(model, *optimizers)
    model, optimizers, guards = train_halves([9, 0, 1, 9, 2, 3], (9,), is_guarded=True)
    assert bits(model, *optimizers) == expected
    done = [[record.remedy for record in guard.records if record.kind == "intervention"] for guard in guards]
    assert done == [["notify", "skip_step", "skip_step"]] * 2


class Pair(nn.Module):
    """A GAN as one module: each guard is given the whole of it."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
        self.discriminator = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LeakyReLU(), nn.Linear(4, 1))


def train_pair(turns, *, is_guarded):
    """Take a turn of "d" or "g" for every letter; a capital one sees a NaN in its batch."""
    torch.manual_seed(0)
    model = Pair()
    optimizers = {"g": torch.optim.Adam(model.generator.parameters())}
    optimizers["d"] = torch.optim.Adam(model.discriminator.parameters())
    if is_guarded:
        for optimizer in optimizers.values():
            gradguard.attach(model, optimizer)
    num_good = 0
    for turn in turns:
        noise = torch.randn(8, 2, generator=torch.Generator().manual_seed(num_good))
        num_good += turn.islower()
        if turn.isupper():
            noise[0] = math.nan
        optimizer = optimizers[turn.lower()]
        optimizer.zero_grad()
        score = model.discriminator(model.generator(noise)).mean()
        (score if turn.lower() == "d" else -score).backward()
        optimizer.step()
    return model, *optimizers.values()


@pytest.mark.parametrize("turns", ["dgdgDgd", "dgdgdGdg", "Ddgdg"])
def test_a_skip_undoes_what_its_own_batch_did_to_buffers_and_no_more(bits, turns):
    """Buffers that the other optimizer's accepted step moved since this one's last step stay as they are."""
    without = "".join(turn for turn in turns if turn.islower())
    expected = bits(*train_pair(without, is_guarded=False))
    assert bits(*train_pair(turns, is_guarded=True)) == expected
