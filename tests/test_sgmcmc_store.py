"""The file of a run's draws: it names its kind, and no call changes or removes a file of another call."""

import pytest
import safetensors
import torch

from .test_sgmcmc import drawn, noisy_line

OPTIONS = {"num_epochs": 20, "num_samples": 8}


@pytest.fixture
def finished(tmp_path):
    """A run with a checkpoint and a file of draws: its model and data, and the two files."""
    model, x, y = noisy_line()
    drawn(model, x, y, **OPTIONS, num_chains=1, checkpoint=tmp_path / "run", store=tmp_path / "draws")
    return (model, x, y), tmp_path / "run", tmp_path / "draws"


def another_run(problem, folder, **options):
    drawn(*problem, **{**OPTIONS, "num_chains": 1, **options}, checkpoint=folder / "other", seed=2)
    return folder / "other"


def stranger(path):
    path.write_bytes(b"the only copy of a thesis")


def other_tensors(path):
    safetensors.torch.save_file({"weights": torch.ones(3)}, path)


REFUSED = {
    "no such checkpoint": (lambda problem, folder: folder / "mistyped", {}, FileNotFoundError, "there is no file"),
    "other chains": (lambda problem, folder: folder / "run", {"num_chains": 2}, ValueError, "`store` holds draws of"),
    "another run": (another_run, {}, ValueError, "`store` holds draws of another run"),
    "fewer draws": (
        lambda problem, folder: folder / "run",
        {"num_samples": 4},
        ValueError,
        "`store` holds draws of sh",
    ),
    "no checkpoint of a fit": (
        lambda problem, folder: folder / "draws",
        {},
        ValueError,
        "`store` must be another file than `resume`",
    ),
    "no resume": (lambda problem, folder: None, {}, FileExistsError, "`store` must be a new file"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_call_leaves_the_draws_of_another_to_the_byte(finished, tmp_path, what):
    problem, _, store = finished
    resume, changes, error, message = REFUSED[what]
    before = store.read_bytes()
    resume = resume(problem, tmp_path)
    with pytest.raises(error, match=message):
        drawn(*problem, **{**OPTIONS, "num_chains": 1, **changes}, resume=resume, store=store)
    assert store.read_bytes() == before


@pytest.mark.parametrize("write", [stranger, other_tensors])
@pytest.mark.parametrize("resume", ["run", "mistyped"])
def test_a_strangers_file_is_never_opened_for_draws(finished, tmp_path, write, resume):
    write(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(ValueError, match="`store` must be a file of draws"):
        drawn(*finished[0], **OPTIONS, num_chains=1, resume=tmp_path / resume, store=tmp_path / "theirs")
    assert (tmp_path / "theirs").read_bytes() == before


def test_a_file_that_lost_its_end_is_refused(finished, tmp_path):
    problem, run, store = finished
    store.write_bytes(store.read_bytes()[:-8])
    with pytest.raises(ValueError, match="`store` must be a file of draws"):
        drawn(*problem, **OPTIONS, num_chains=1, resume=run, store=store)


def test_the_draws_can_be_read_by_other_programs_and_say_their_shape(finished):
    with safetensors.safe_open(finished[2], framework="pt") as file:
        assert file.metadata()["kind"] == "draws"
        assert file.get_tensor("draws").shape == (1, 8, 3)


def test_a_resumed_run_takes_its_own_file_or_makes_it_anew(finished, tmp_path):
    problem, run, store = finished
    options = {**OPTIONS, "num_chains": 1, "resume": run}
    expected = store.read_bytes()
    drawn(*problem, **options, store=store)
    assert store.read_bytes() == expected
    drawn(*problem, **options, store=tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == expected


def test_a_run_of_more_draws_cannot_go_on_with_fewer(finished):
    problem, run, _ = finished
    with pytest.raises(ValueError, match="`num_samples` must be 8, as in the run that is resumed, got 4"):
        drawn(*problem, **{**OPTIONS, "num_samples": 4}, num_chains=1, resume=run)


def test_a_call_that_fails_removes_the_file_that_it_made(tmp_path):
    def stop(history):
        assert (tmp_path / "draws").exists() == (len(history.epochs) > 10)
        if len(history.epochs) == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drawn(*noisy_line(), **OPTIONS, num_chains=1, store=tmp_path / "draws", callbacks=[stop])
    assert not (tmp_path / "draws").exists()


def test_a_resumed_call_that_fails_late_leaves_the_file_that_it_found(tmp_path):
    problem, store = noisy_line(), tmp_path / "draws"
    drawn(*problem, **OPTIONS, num_chains=2, checkpoint=tmp_path / "run", store=store)
    before = store.read_bytes()
    stranger(tmp_path / "run.1")
    with pytest.raises(ValueError, match=r"run\.1 is damaged"):
        drawn(*problem, **OPTIONS, num_chains=2, resume=tmp_path / "run", store=store)
    assert store.read_bytes() == before


@pytest.mark.parametrize("name", ["run.1", "run.0"])
def test_the_checkpoints_of_all_chains_are_looked_at_before_the_first_begins(tmp_path, name):
    stranger(tmp_path / name)
    model, x, y = noisy_line()
    calls = []
    with pytest.raises(FileExistsError, match="`checkpoint` must be a new file"):
        drawn(model, x, y, **OPTIONS, num_chains=2, checkpoint=tmp_path / "run", callbacks=[calls.append])
    assert not calls


def test_draws_and_checkpoint_cannot_be_one_file(tmp_path):
    with pytest.raises(ValueError, match="`store` must be another file than `checkpoint`"):
        drawn(*noisy_line(), **OPTIONS, num_chains=1, checkpoint=tmp_path / "run", store=tmp_path / "run")
