"""The pre-flight: measures a training once, hands the facts to every check in `gradguard.checks`, reports."""
