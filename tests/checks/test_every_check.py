"""Every check speaks on the mistake that it is for, and is silent on trainings that are healthy."""

import re

import pytest
import torch
from faulty_models import FAULTS, case
from healthy_models import HEALTHY

import gradguard
from gradguard.checklist.run import known_checks


@pytest.mark.parametrize(("check", "severity", "words", "build"), FAULTS, ids=[f"{f[0]}-{f[2]}" for f in FAULTS])
def test_a_mistake_is_named_with_its_cure(check, severity, words, build):
    arguments, options = build()
    report = gradguard.preflight(*arguments, **options)
    told = [found for found in report.findings if found.check == check and re.search(words, found.message)]
    assert [found.severity for found in told] == [severity], str(report)
    assert report.ok == (not report.at_least("warn"))
    assert not report.unseen


@pytest.mark.parametrize("build", [fault[3] for fault in FAULTS], ids=[f"{f[0]}-{f[2]}" for f in FAULTS])
def test_the_number_of_a_layer_is_told_from_a_number(build):
    """Of an `nn.Sequential`: "99% of the values of 1 are" says nothing."""
    arguments, options = build()
    for found in gradguard.preflight(*arguments, **options).findings:
        if any(name.isdecimal() for name in found.layers) and not any("." in name for name in found.layers):
            assert "layer '" in found.message


def test_every_check_is_fired_by_a_mistake():
    assert {fault[0] for fault in FAULTS} == set(known_checks())


@pytest.mark.parametrize("build", HEALTHY, ids=lambda build: build.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_training_is_ready(build, seed):
    torch.manual_seed(seed)
    report = gradguard.preflight(*build())
    assert report.ok, str(report)
    assert not report.unseen


def test_a_plain_training_is_told_nothing_at_all_even_with_the_overfit():
    arguments, _ = case(lr=0.5)()
    report = gradguard.preflight(*arguments, overfit=True, num_classes=3)
    assert report.findings == ()
    assert set(report.checked) == set(known_checks())
    assert report.overfit is not None
    assert len(report.overfit) == 101
