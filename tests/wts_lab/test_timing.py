"""The gate keeps the host out of samples: shown on a simulated queue whose true device times are known."""

import pytest

from wts_lab.timing import GateTimer, TimingError


def call_of(queue, host_us, device_us):
    return lambda: queue.enqueue(host_us, device_us)


def test_samples_are_the_device_time_although_the_host_is_slower(simulated):
    queue = simulated.Queue()
    samples = GateTimer(queue).burst("walk", call_of(queue, 40.0, 7.5), repeats=50)
    assert samples == pytest.approx([7.5] * 50)


def test_the_simulation_would_show_the_host_without_a_gate(simulated):
    """Guards the test above: on this queue, naive timing is wrong by the host's cost."""
    queue = simulated.Queue()
    start = queue.mark()
    queue.enqueue(40.0, 7.5)
    assert queue.elapsed_us(start, queue.mark()) > 40


def test_a_gate_that_opened_too_early_is_tried_again_longer(simulated):
    queue = simulated.Queue()
    timer = GateTimer(queue)
    samples = timer.burst("slow host", call_of(queue, 150.0, 10.0), repeats=30)  # 2.5 times the first guess of the cost
    assert samples == pytest.approx([10.0] * 30)


def test_a_full_queue_leads_to_smaller_batches_and_true_times(simulated):
    queue = simulated.Queue(depth=64)
    samples = GateTimer(queue).burst("long graphs", call_of(queue, 20.0, 9.0), repeats=100)
    assert samples == pytest.approx([9.0] * 100)


def test_what_comes_before_a_call_is_not_in_its_time(simulated):
    queue = simulated.Queue()
    samples = GateTimer(queue).burst("cold", call_of(queue, 5.0, 20.0), repeats=10, before=call_of(queue, 5.0, 80.0))
    assert samples == pytest.approx([20.0] * 10)


def test_warm_up_calls_run_and_are_not_counted(simulated):
    queue, times = simulated.Queue(), iter([90.0, 50.0] + [10.0] * 100)
    samples = GateTimer(queue).burst("first calls slow", lambda: queue.enqueue(5.0, next(times)), repeats=20, warmup=2)
    assert samples == pytest.approx([10.0] * 20)


def test_a_host_that_can_never_fill_the_gate_is_an_error_that_says_so(simulated):
    queue = simulated.Queue()
    with pytest.raises(TimingError, match="outlasted a gate of 20000 us.*stop other work"):
        GateTimer(queue).burst("hopeless", call_of(queue, 50_000.0, 1.0), repeats=3)


@pytest.mark.parametrize(("repeats", "warmup"), [(0, 1), (1, -1)])
def test_counts_that_cannot_be_are_refused(simulated, repeats, warmup):
    queue = simulated.Queue()
    with pytest.raises(ValueError, match="at least 1 and at least 0"):
        GateTimer(queue).burst("none", call_of(queue, 1.0, 1.0), repeats=repeats, warmup=warmup)


def test_busy_occupies_the_device_for_as_long_as_asked(simulated):
    queue = simulated.Queue()
    GateTimer(queue).busy(45_000.0)
    assert queue.device >= 45_000
    assert queue.host >= queue.device
