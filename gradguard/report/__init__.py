"""One self-contained page about one or several runs: what is computed here is drawn by the page's own scripts."""
