"""Learning-rate schedules: their formulas, PyTorch's, and the scheduler's state."""

import copy
import math
import pickle

import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError
from tinygrad_helix.optim import (
    SGD,
    ConstantSchedule,
    CosineDecay,
    JoinedSchedules,
    LinearSchedule,
    LRScheduler,
    StepDecay,
)


def make(schedule, lrs=(0.5, 0.125)):
    ps = [th.tensor([1.0], requires_grad=True) for _ in lrs]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(ps, lrs, strict=True)]
    optimizer = SGD(groups, lr=1.0)
    return optimizer, LRScheduler(optimizer, schedule)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_the_first_rate_is_set_at_once_and_each_step_sets_the_next():
    optimizer, scheduler = make(LinearSchedule(0.0, 1.0, 4))
    seen = [rates(optimizer)]
    for _ in range(5):
        optimizer.step()
        scheduler.step()
        seen.append(rates(optimizer))
    warm = [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert seen == [[0.5 * f, 0.125 * f] for f in warm]


def test_the_ends_are_exact():
    for schedule, first, last in [
        (LinearSchedule(0.1, 0.7, 3), 0.1, 0.7),
        (CosineDecay(7, end=0.3), 1.0, 0.3),
        (CosineDecay(7), 1.0, 0.0),
        (ConstantSchedule(0.3), 0.3, 0.3),
    ]:
        assert schedule(0) == first
        assert schedule(7) == schedule(8) == schedule(10**9) == last
    assert [StepDecay(3, gamma=0.5)(t) for t in (0, 2, 3, 5, 6)] == [1, 1, 0.5, 0.5, 0.25]
    assert ConstantSchedule()(5) == 1.0


def test_joined_schedules_count_from_their_own_beginning():
    calls = []

    def watched(t):
        calls.append(t)
        return 2.0

    parts = [LinearSchedule(0.0, 1.0, 2), ConstantSchedule(0.5), watched]
    schedule = JoinedSchedules(parts, (2, 5))
    got = [schedule(t) for t in range(8)]
    assert got == [0.0, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0]
    assert calls == [0, 1, 2]
    assert JoinedSchedules([StepDecay(1)], [])(2) == pytest.approx(0.01)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ConstantSchedule(0.5), lambda L, o: L.LambdaLR(o, lambda t: 0.5)),
        (LinearSchedule(0.1, 0.9, 5), lambda L, o: L.LinearLR(o, 0.1, 0.9, 5)),
        (StepDecay(3, 0.2), lambda L, o: L.StepLR(o, 3, 0.2)),
        (CosineDecay(12), lambda L, o: L.CosineAnnealingLR(o, 12)),
        (
            JoinedSchedules([LinearSchedule(0.01, 1.0, 4), CosineDecay(8)], [4]),
            lambda L, o: L.SequentialLR(
                o, [L.LinearLR(o, 0.01, 1.0, 4), L.CosineAnnealingLR(o, 8)], [4]
            ),
        ),
        (lambda t: 0.9**t, lambda L, o: L.ExponentialLR(o, 0.9)),
    ],
    ids=["constant", "linear", "step", "cosine", "joined", "function"],
)
def test_rates_of_pytorch(ours, theirs):
    torch = pytest.importorskip("torch")
    optimizer, scheduler = make(ours)
    q = [torch.ones(1, requires_grad=True) for _ in range(2)]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(q, (0.5, 0.125), strict=True)]
    oracle = torch.optim.SGD(groups, lr=1.0)
    theirs_ = theirs(torch.optim.lr_scheduler, oracle)
    for _ in range(12):
        assert rates(optimizer) == pytest.approx(rates(oracle), rel=1e-12, abs=1e-15)
        oracle.step()
        theirs_.step()
        scheduler.step()


# --- state


def test_resuming_gives_the_same_rates():
    schedule = JoinedSchedules([LinearSchedule(0.0, 1.0, 3), CosineDecay(6, 0.1)], [3])
    optimizer, scheduler = make(schedule)
    for _ in range(5):
        scheduler.step()
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    assert saved[1] == {"step": 5, "base_lrs": [0.5, 0.125]}
    scheduler.step()
    for order in (0, 1):
        again, scheduler2 = make(schedule, (3.0, 7.0))
        loads = [
            lambda again=again: again.load_state_dict(saved[0]),
            lambda scheduler2=scheduler2: scheduler2.load_state_dict(saved[1]),
        ]
        loads[order]()
        loads[1 - order]()
        assert rates(again) == rates_at(5)
        scheduler2.step()
        assert rates(again) == rates(optimizer) != rates_at(5)


def rates_at(t):
    factor = CosineDecay(6, 0.1)(t - 3)
    return [0.5 * factor, 0.125 * factor]


def test_a_scheduler_made_on_a_resumed_optimizer():
    optimizer, scheduler = make(StepDecay(1, 0.5))
    scheduler.step()
    again, _ = make(StepDecay(1, 0.5))
    again.load_state_dict(optimizer.state_dict())
    late = LRScheduler(again, StepDecay(1, 0.5))
    late.load_state_dict(scheduler.state_dict())
    assert rates(again) == rates(optimizer) == [0.25, 0.0625]


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
def test_copies_schedule_the_copied_optimizer(twin):
    pair = make(JoinedSchedules([StepDecay(1, 0.5), CosineDecay(4)], [2]))
    optimizer, scheduler = twin(pair)
    scheduler.step()
    assert rates(optimizer) == [0.25, 0.0625]
    assert rates(pair[0]) == [0.5, 0.125]
    assert scheduler.schedule == pair[1].schedule


@pytest.mark.parametrize(
    ("state", "error", "match"),
    [
        ({}, DTypeError, "step"),
        (None, DTypeError, "none"),
        ({"step": 1, "base_lrs": ["a"]}, DTypeError, "could not convert"),
        ({"step": 1.0, "base_lrs": [1.0, 2.0]}, DTypeError, "step=1.0"),
        ({"step": -1, "base_lrs": [1.0, 2.0]}, DTypeError, "step=-1"),
        ({"step": 1, "base_lrs": [1.0]}, ShapeError, "1 groups.*has 2"),
        ({"step": 1, "base_lrs": [1.0, math.nan]}, HelixError, "base_lrs=nan"),
        ({"step": 1, "base_lrs": [-1.0, 1.0]}, HelixError, "base_lrs=-1.0"),
        ({"step": 1, "base_lrs": [1.0, math.inf]}, HelixError, "base_lrs=inf"),
    ],
)
def test_a_bad_state_changes_nothing(state, error, match):
    optimizer, scheduler = make(StepDecay(1, 0.5))
    scheduler.step()
    with pytest.raises(error, match=match):
        scheduler.load_state_dict(state)
    assert scheduler.state_dict() == {"step": 1, "base_lrs": [0.5, 0.125]}
    assert rates(optimizer) == [0.25, 0.0625]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, "1", None])
def test_a_bad_factor_changes_nothing(bad):
    optimizer, scheduler = make(lambda t: 1.0 if t < 2 else bad)
    scheduler.step()
    for _ in range(2):
        with pytest.raises(HelixError, match="LRScheduler at step 2"):
            scheduler.step()
    assert rates(optimizer) == [0.5, 0.125] and scheduler.state_dict()["step"] == 1


@pytest.mark.parametrize(
    ("fault", "error", "match"),
    [
        (lambda: ConstantSchedule(math.nan), HelixError, "factor=nan"),
        (lambda: LinearSchedule(-1.0, 1.0, 5), HelixError, "start=-1.0"),
        (lambda: LinearSchedule(0.0, "1", 5), DTypeError, "end; got str"),
        (lambda: LinearSchedule(0.0, 1.0, 0), HelixError, "steps=0"),
        (lambda: CosineDecay(2.5), DTypeError, "steps; got float"),
        (lambda: CosineDecay(5, end=math.inf), HelixError, "end=inf"),
        (lambda: StepDecay(True), DTypeError, "every; got bool"),
        (lambda: StepDecay(2, gamma=-0.5), HelixError, "gamma=-0.5"),
        (lambda: JoinedSchedules([], []), ShapeError, "0 schedules and 0"),
        (lambda: JoinedSchedules([StepDecay(1)], [3]), ShapeError, "1 schedules and 1"),
        (lambda: JoinedSchedules([StepDecay(1)] * 3, [5, 5]), HelixError, "rise"),
        (lambda: JoinedSchedules([StepDecay(1)] * 2, [0]), HelixError, "boundaries=0"),
        (lambda: JoinedSchedules([StepDecay(1), 0.5], [3]), DTypeError, "got float"),
        (lambda: JoinedSchedules(3, [1]), DTypeError, "list as schedules; got int"),
        (lambda: JoinedSchedules([StepDecay(1)] * 2, 1), DTypeError, "list as boundaries"),
        (lambda: make(0.5), DTypeError, "got float"),
        (lambda: LRScheduler(StepDecay(1), StepDecay(1)), DTypeError, "got StepDecay"),
    ],
)
def test_bad_arguments(fault, error, match):
    with pytest.raises(error, match=match):
        fault()


def test_a_group_added_later_needs_another_scheduler():
    optimizer, scheduler = make(StepDecay(1, 0.5))
    p = th.ones(1, requires_grad=True)
    optimizer.add_param_group({"params": [p], "lr": 8.0})
    with pytest.raises(ShapeError, match="for 2 groups, and its optimizer has 3 now"):
        scheduler.step()
    assert rates(optimizer)[2] == 8.0
    assert scheduler.state_dict()["step"] == 0
    again = LRScheduler(optimizer, StepDecay(1, 0.5))
    again.step()
    assert rates(optimizer)[2] == 4.0
