import pytest
from reported_runs import Recording, healthy, sick


@pytest.fixture
def sick_run(tmp_path):
    return sick(tmp_path / "sick")


@pytest.fixture
def healthy_run(tmp_path):
    return healthy(tmp_path / "healthy", names=["a.weight", "b.weight"])


@pytest.fixture
def empty_run(tmp_path):
    return Recording(tmp_path / "empty").finish("failed")
