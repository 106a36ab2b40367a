"""Jobs in several processes: their results in order, their errors as they are."""

import os
import time
from functools import partial

import pytest

from experiments.run.errors import UserError
from experiments.run.processes import in_processes


def test_results_come_in_order_from_other_processes() -> None:
    def job(number: int) -> tuple[int, int]:
        time.sleep(0.02 * (5 - number))  # the last ones end first
        return number, os.getpid()

    finished: list[int] = []
    results = in_processes([partial(job, number) for number in range(6)], finished.append)
    assert finished == [1, 2, 3, 4, 5, 6]
    assert [number for number, _ in results] == list(range(6))
    assert os.getpid() not in {process for _, process in results}


def test_an_error_of_a_job_is_raised_at_once() -> None:
    def refuse() -> int:
        raise UserError("task.problems=0: must be at least 1")

    with pytest.raises(UserError, match="must be at least 1"):
        in_processes([lambda: time.sleep(600), refuse])
