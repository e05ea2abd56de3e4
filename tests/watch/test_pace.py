from gradguard.watch.pace import Pace


def test_the_rate_is_that_between_two_bursts_not_between_two_looks():
    """64 rows come every 4 s; looks every second see most of the time nothing."""
    pace = Pace()
    for second in range(30):
        pace.add(second + 0.5, 64 * (second // 4))
    assert pace.rate() == 16.0
    assert pace.last_growth == 28.5


def test_what_was_there_at_the_first_look_is_no_speed():
    pace = Pace()
    pace.add(0.0, 1_000_000)
    assert pace.rate() is None
    pace.add(1.0, 1_000_064)
    assert pace.rate() is None
    pace.add(2.0, 1_000_128)
    assert pace.rate() == 64.0


def test_a_change_of_speed_is_followed():
    pace = Pace()
    for second in range(200):
        pace.add(float(second), 100 * second)
    for second in range(200, 500):
        pace.add(float(second), 20_000 + (second - 200))
    assert pace.rate() == 1.0
