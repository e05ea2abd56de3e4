from made_runs import close_runs


__all__ = ["close_runs"]
