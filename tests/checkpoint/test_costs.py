"""The model of checkpoints: what was measured, as it must grow and shrink, and the advice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.checkpoint.costs import LOGS, WHOLE_LOGS, Estimate, Goals, Setting, Workload, advise, estimate, settings
from strandline.core.settings import Mode

WORK = Workload(1e9, 2, 10e6, 5_000, restart_delay_s=0.1)
"""As in `latency` and `recovery`: 1 GB, of which 1 % changes a second."""
_SIZES, _TIMES = st.floats(1e5, 1e12), st.floats(0.1, 1_000)

works = st.builds(
    Workload, state_bytes=_SIZES, partitions=st.integers(1, 64), changed_per_s=st.floats(0, 1e8),
    rows_per_s=st.floats(0, 1e5), epoch_s=st.floats(0.01, 5), write_per_s=st.floats(1e6, 1e10),
    read_per_s=st.floats(1e6, 1e10), capacity_per_s=st.floats(1e5, 1e6),
)  # fmt: skip
choices = st.builds(
    Setting, st.sampled_from(["full", "incremental", "changelog"]), every_s=_TIMES, log=st.sampled_from(LOGS)
) | st.builds(Setting, st.just("continuous"), every_s=_TIMES, log=st.sampled_from(WHOLE_LOGS))


@pytest.mark.parametrize(
    ("mode", "every_s", "p50_s", "p99_s"),
    [
        ("incremental", 0.5, 0.61, 1.39),
        ("changelog", 0.5, 0.60, 1.02),
        ("incremental", 0.5, 0.64, 1.92),
        ("changelog", 0.5, 0.60, 1.11),
        ("changelog", 0.2, 0.46, 0.94),
        ("changelog", 0.2, 0.43, 0.92),
    ],
)
def test_ages_of_rows_are_those_that_were_measured(mode: Mode, every_s: float, p50_s: float, p99_s: float) -> None:
    """The table of `latency` in docs/benchmarks.md."""
    predicted = estimate(WORK, Setting(mode, every_s))
    assert predicted.age_p50_s == pytest.approx(p50_s, rel=0.15)
    assert predicted.age_p99_s == pytest.approx(p99_s, rel=0.25)


def test_uploads_and_recoveries_are_those_that_were_measured() -> None:
    """29 to 36 MB/s in `latency`; after a keeper's kill 0.97 s in `recovery`, of which the delay takes 0.1 s."""
    predicted = estimate(replace(WORK, rows_per_s=0), Setting("incremental", 0.5))
    assert predicted.uploaded_per_s == pytest.approx(29e6, rel=0.1)
    assert predicted.recovery_s("keeper") == pytest.approx(0.97, rel=0.2)
    assert estimate(WORK, Setting("changelog", 0.5, LOGS[2])).uploaded_per_s < predicted.uploaded_per_s


@given(
    works,
    choices,
    st.sampled_from(["state_bytes", "rows_per_s", "epoch_s", "restart_delay_s", "slowness"]),
    st.floats(1, 50),
)
def test_what_grows_makes_recoveries_longer(work: Workload, setting: Setting, field: str, factor: float) -> None:
    small, large = (
        estimate(each, setting, log_bytes=1e6)
        for each in (work, replace(work, **{field: getattr(work, field) * factor}))
    )
    for failure in small.recovery:
        assert large.recovery_s(failure) >= small.recovery_s(failure) * (1 - 1e-9)


@given(works, choices, _TIMES)
def test_longer_intervals_make_rows_older_and_recoveries_longer_for_fewer_uploads(
    work: Workload, setting: Setting, more_s: float
) -> None:
    short, long = estimate(work, setting), estimate(work, replace(setting, every_s=setting.every_s + more_s))
    assert long.age_p50_s >= short.age_p50_s * (1 - 1e-9)
    assert long.age_p99_s >= short.age_p99_s * (1 - 1e-9)
    assert long.recovery_s("keeper") >= short.recovery_s("keeper") * (1 - 1e-9)
    assert long.uploaded_per_s <= short.uploaded_per_s * (1 + 1e-9)


@given(works, choices)
def test_the_parts_are_the_whole(work: Workload, setting: Setting) -> None:
    each = estimate(work, setting)
    assert 0 < each.age_p50_s <= each.age_p99_s == pytest.approx(sum(each.age_parts.values()))
    assert each.recovery_s("program") == pytest.approx(sum(each.recovery["program"].values()))
    assert each.stored_bytes >= work.state_bytes


@given(works, st.floats(1e6, 1e10), st.floats(1e6, 1e9))
def test_a_longer_log_takes_longer_to_repeat(work: Workload, log_bytes: float, more: float) -> None:
    setting = Setting("changelog", 1.0)
    short, long = (estimate(work, setting, size) for size in (log_bytes, log_bytes + more))
    assert long.recovery["program"]["repeating the log"] > short.recovery["program"]["repeating the log"]
    # A keeper that is replaced alone repeats what was in memory.
    assert long.recovery["keeper"]["repeating the log"] >= short.recovery["keeper"]["repeating the log"]


@given(works, st.floats(0.1, 1_000), st.floats(0.1, 1_000))
def test_advice_is_the_cheapest_that_meets_the_goals(work: Workload, recover_s: float, age_s: float) -> None:
    every = [estimate(work, setting) for setting in settings(work)]
    goals = Goals(recover_s, age_s)
    advice = advise(every, goals)
    met = [each for each in every if each.recovery_s("keeper") <= recover_s and each.age_p99_s <= age_s]
    assert advice.is_met == bool(met) == (not advice.misses)
    if met:
        assert advice.best in met
        assert advice.best.uploaded_per_s <= 1.2 * min(each.uploaded_per_s for each in met) + 1
    else:
        assert goals.excess(advice.best) == min(map(goals.excess, every)) > (0, 1)


def test_what_cannot_be_met_is_named_with_what_takes_longest() -> None:
    def advice(**goals: float | str) -> tuple[Estimate, list[str]]:
        every = [estimate(WORK, setting) for setting in settings(WORK)]
        found = advise(every, Goals(**goals))  # type: ignore[arg-type]
        return found.best, found.misses

    best, misses = advice(recover_s=5.0, age_s=1.2)
    assert (best.setting.mode, misses) == ("continuous", [])
    _, (miss,) = advice(recover_s=5.0, failure="program")
    assert miss.startswith("recovery within 5 s cannot be met: at best 13.")
    assert miss.endswith("of which starting Spark and the program takes 9.8 s")
    _, (miss,) = advice(age_s=0.1)
    assert miss.startswith("latency within 0.1 s cannot be met: at best 0.")


def test_what_can_be_met_is_met_where_another_goal_cannot_be() -> None:
    every = [estimate(WORK, setting) for setting in settings(WORK)]
    advice = advise(every, Goals(0.1, 1.2))
    assert (advice.is_met, len(advice.misses)) == (False, 1)
    assert advice.best.age_p99_s <= 1.2


def test_a_longer_log_with_all_state_is_written_again_less_and_takes_longer_to_repeat() -> None:
    short, long = (estimate(WORK, Setting("continuous", 0.5, log)) for log in WHOLE_LOGS)
    assert WORK.changed_per_s < long.uploaded_per_s < short.uploaded_per_s < 1.3 * WORK.changed_per_s
    assert short.recovery_s("program") < long.recovery_s("program")
    assert short.stored_bytes == 2e9


def test_state_in_memory_has_full_checkpoints_only() -> None:
    work = replace(WORK, is_written_whole=True)
    assert {setting.mode for setting in settings(work)} == {"full"}
    assert (
        estimate(work, Setting("incremental", 10.0)).uploaded_per_s
        == estimate(work, Setting("full", 10.0)).uploaded_per_s
    )


def test_the_line_of_python_is_the_setting() -> None:
    for setting in settings(WORK):
        checkpoints = eval(setting.code("file:///ck"), {"sl": sl})
        log = {"continuous" if setting.mode == "continuous" else "changelog": setting.log}
        assert checkpoints == sl.Checkpoints("file:///ck", mode=setting.mode, every=checkpoints.every, **log)
        assert checkpoints.interval_ms == setting.every_s * 1000
